// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Package node is what runs as the ancestor of all processes of a test
// cluster, or of one of its nodes. They live exactly as long as it does.
package node

import "encoding/json"

// Launch is the first line that the program reads from its standard input.
// Until then it does nothing, so that it can be recorded first.
type Launch struct {
	// Cgroups are directories to enter before anything is started.
	Cgroups []string `json:"cgroups,omitempty"`
	// Namespaces asks for a node in namespaces of its own; otherwise the
	// processes run in those of the caller, as level api wants it.
	Namespaces bool `json:"namespaces,omitempty"`
}

// Spec is the second line: what to run. It comes when certificates and
// configuration are written and the network is there.
type Spec struct {
	// Hostname, Root and the rest up to Files are used with Namespaces only.
	Hostname string `json:"hostname,omitempty"`
	// Root is a directory for everything that would otherwise be written to
	// the host's directories.
	Root string `json:"root,omitempty"`
	// Overlaid are directories of the host that are visible but unchangeable:
	// what the node writes there goes to Root.
	Overlaid []string `json:"overlaid,omitempty"`
	// Private are directories that start empty and lie below Root. They may be
	// below those that are overlaid.
	Private []string `json:"private,omitempty"`
	// Controllers are the cgroup v1 controllers to mount.
	Controllers []string `json:"controllers,omitempty"`
	// Sysctls are settings below /proc/sys.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Files are written once the directories are in place.
	Files map[string]string `json:"files,omitempty"`
	// Path is the search path for programs.
	Path string `json:"path,omitempty"`
	// Daemons are started in order and started again when they end.
	Daemons []Daemon `json:"daemons"`
}

// Daemon is a program to keep running.
type Daemon struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	// Log is the file that its output is appended to.
	Log string `json:"log"`
}

// Line returns v as one line of JSON.
func Line(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(b, '\n'), err
}
