// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseStartTime(t *testing.T) {
	const rest = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20"
	for name, test := range map[string]struct {
		stat string
		want uint64
		fail bool
	}{
		"plain":                           {stat: "1 (init) S" + rest, want: 4711},
		"a name with spaces and brackets": {stat: "1 (a) Z (b)) R" + rest, want: 4711},
		"a zombie is no process":          {stat: "1 (init) Z" + rest, fail: true},
		"cut off":                         {stat: "1 (init) S 1 2", fail: true},
		"empty":                           {stat: "", fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStartTime(test.stat)
			if got != test.want || (err != nil) != test.fail {
				t.Errorf("parseStartTime(%q) = %d, %v, want %d and failure %t", test.stat, got, err, test.want, test.fail)
			}
		})
	}
}

// sleeper starts a process that lasts, with the given environment.
func sleeper(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-done })
	return cmd
}

func TestDown_ends_recorded_processes_and_their_kin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "testbed")
	j, err := newJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	recorded, kin, other := sleeper(t), sleeper(t, markerEnv+"="+j.id), sleeper(t, markerEnv+"=another")
	if err := j.recordProcess(recorded.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "something"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		cmd  *exec.Cmd
		want bool
	}{"recorded": {recorded, false}, "kin": {kin, false}, "other": {other, true}} {
		_, err := startTime(test.cmd.Process.Pid)
		if got := err == nil; got != test.want {
			t.Errorf("process %q runs: %t, want %t", name, got, test.want)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("directory: %v, want it gone", err)
	}
	if err := Down(t.Context(), dir); err != nil {
		t.Errorf("Down without a cluster: %v", err)
	}
}

// The number of a process that ended may be another's by now.
func TestDown_spares_a_process_that_reuses_a_number(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "testbed")
	j, err := newJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	other := sleeper(t)
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []process{{PID: other.Process.Pid, Start: 1, Boot: boot}, {PID: other.Process.Pid, Start: 1, Boot: "another"}} {
		if err := j.record(entry{Process: &p}); err != nil {
			t.Fatal(err)
		}
	}
	if err := Down(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := startTime(other.Process.Pid); err != nil {
		t.Errorf("the other process: %v, want it to run", err)
	}
}

func TestReadJournal(t *testing.T) {
	for name, test := range map[string]struct {
		content string
		want    int
		fail    bool
	}{
		"whole":                   {content: "{\"id\":\"a\"}\n{\"cgroup\":\"/x\"}\n", want: 2},
		"last line cut off":       {content: "{\"id\":\"a\"}\n{\"cgr", want: 1},
		"nothing written":         {content: "", want: 0},
		"broken in the middle":    {content: "{\"id\":\"a\"}\n{x\n{\"cgroup\":\"/x\"}\n", fail: true},
		"only a part of a line":   {content: "{\"id", want: 0},
		"broken but whole at end": {content: "{\"id\":\"a\"}\n{x\n", fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, journalFile), []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := readJournal(dir)
			if len(got) != test.want || (err != nil) != test.fail {
				t.Errorf("readJournal() = %v, %v, want %d entries and failure %t", got, err, test.want, test.fail)
			}
		})
	}
}

func TestLockFile_goes_with_the_lock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan func())
	go func() {
		second, err := lockFile(path)
		if err != nil {
			t.Error(err)
		}
		got <- second
	}()
	unlock()
	second := <-got
	if _, err := os.Stat(path); err != nil {
		t.Errorf("while locked: %v", err)
	}
	second()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after unlock: %v, want it gone", err)
	}
}

func TestOptions_withDefaults(t *testing.T) {
	for name, test := range map[string]struct {
		o    Options
		want string
	}{
		"no level":                                     {Options{}, "level"},
		"unknown version":                              {Options{Level: LevelAPI, KubeVirtVersion: "v0.1.0"}, "version"},
		"a name that no mount takes":                   {Options{Level: LevelAPI, Dir: "/tmp/a,b"}, "overlay"},
		"below what it covers":                         {Options{Level: LevelAPI, Dir: "/var/lib/x"}, "covers"},
		"more nodes than can be":                       {Options{Level: LevelKubeVirt, Nodes: 3}, "nodes"},
		"a node without kubelet":                       {Options{Level: LevelAPI, Nodes: 1}, "nodes"},
		"a version that cannot be built for the level": {Options{Level: LevelReal, KubeVirtVersion: "v1.8.4"}, "cannot be built"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := test.o.withDefaults(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("withDefaults() of %+v: %v, want an error with %q", test.o, err, test.want)
			}
		})
	}
	for level, want := range map[Level]int{LevelAPI: 0, LevelKubeVirt: 2, LevelReal: 1} {
		if o, err := (Options{Level: level}).withDefaults(); err != nil || o.Nodes != want {
			t.Errorf("level %s has %d nodes, %v, want %d", level, o.Nodes, err, want)
		}
	}
	o, err := Options{Level: LevelAPI, Dir: "relative"}.withDefaults()
	if err != nil || !filepath.IsAbs(o.Dir) || o.Log == nil || o.KubeVirtVersion != KubeVirtVersions()[0] {
		t.Errorf("withDefaults() = %+v, %v, want an absolute directory, a log and the first version", o, err)
	}
}
