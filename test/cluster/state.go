// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Names inside a state directory. The lock lies beside it, so that it can be
// held while the directory is removed.
const (
	journalFile    = "journal"
	clusterFile    = "cluster.json"
	kubeconfigFile = "kubeconfig"
)

// markerEnv is set to the cluster's random id in all processes that Up starts.
// Containers do not inherit it; those are found by their cgroup.
const markerEnv = "KUBEVIRTBMC_TESTBED"

// entry is one line of the journal: something that Down has to remove. It is
// on disk before the thing exists, or before the process does anything.
type entry struct {
	// ID is the cluster's random id, the first line of every journal.
	ID string `json:"id,omitempty"`
	// Process is a process that all others descend from.
	Process *process `json:"process,omitempty"`
	// Cgroup is the path of a cgroup of our own.
	Cgroup string `json:"cgroup,omitempty"`
}

// process identifies a process across the reuse of its number.
type process struct {
	PID int `json:"pid"`
	// Start is its start time in clock ticks since the machine started.
	Start uint64 `json:"start"`
	// Boot is the id of the machine's run.
	Boot string `json:"boot"`
}

// journal writes entries.
type journal struct {
	id string
	f  *os.File
}

// newJournal makes the state directory with an empty journal in it.
func newJournal(dir string) (*journal, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, journalFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	j := &journal{id: strings.ToLower(rand.Text()[:16]), f: f}
	return j, j.record(entry{ID: j.id})
}

// record appends an entry and returns when it is on disk.
func (j *journal) record(e entry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := j.f.Write(append(b, '\n')); err != nil {
		return err
	}
	return j.f.Sync()
}

// recordProcess records the process with the given number.
func (j *journal) recordProcess(pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	return j.record(entry{Process: &process{PID: pid, Start: start, Boot: boot}})
}

func (j *journal) close() error { return j.f.Close() }

// readJournal reads the entries of dir; a last line that was cut off by a
// crash is left out, since what it would announce was never made.
func readJournal(dir string) ([]entry, error) {
	b, err := os.ReadFile(filepath.Join(dir, journalFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var entries []entry
	for line := range bytes.Lines(b[:bytes.LastIndexByte(b, '\n')+1]) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("journal of %s: %w", dir, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// startTime returns when the process started, or an error if there is none or
// it is dead and only waits to be reaped.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStartTime(string(b))
}

// parseStartTime reads the start time (field 22) from a line of
// /proc/PID/stat. The second field is in parentheses and may hold anything.
func parseStartTime(stat string) (uint64, error) {
	_, rest, ok := strings.Cut(stat[strings.LastIndex(stat, ")")+1:], " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, fmt.Errorf("stat line %q is too short", stat)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// alive reports whether exactly this process still runs.
func (p process) alive() bool {
	boot, err := bootID()
	if err != nil || boot != p.Boot {
		return false
	}
	start, err := startTime(p.PID)
	return err == nil && start == p.Start
}

// ending reports whether a process whose first thread has ended still has
// others, which may hold ports and files open.
func (p process) ending() bool {
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID)); err != nil || !strings.Contains(string(b), fmt.Sprintf(" %d ", p.Start)) {
		return false
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
	return err == nil && len(tasks) > 1
}

// lockState keeps others from changing the same cluster at the same time.
func lockState(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	return lockFile(dir + ".lock")
}

// lockFile takes an exclusive lock that the kernel releases if we die. The
// file goes away with the lock.
func lockFile(path string) (unlock func(), err error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			if !errors.Is(err, syscall.EWOULDBLOCK) {
				f.Close()
				return nil, fmt.Errorf("lock %s: %w", path, err)
			}
			fmt.Fprintf(os.Stderr, "waiting for %s, which another process holds\n", path)
			if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
				f.Close()
				return nil, fmt.Errorf("lock %s: %w", path, err)
			}
		}
		// Who held it before us has removed the file: start over with a new one.
		ours, err1 := f.Stat()
		current, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(ours, current) {
			return func() { os.Remove(path); f.Close() }, nil
		}
		f.Close()
	}
}

// removeState ends what the journal of dir names, and removes dir. The caller
// holds the lock.
func removeState(ctx context.Context, dir string) error {
	entries, err := readJournal(dir)
	if err != nil {
		return err
	}
	var id string
	var processes []process
	var cgroups []string
	for _, e := range entries {
		switch {
		case e.ID != "":
			id = e.ID
		case e.Process != nil:
			processes = append(processes, *e.Process)
		case e.Cgroup != "":
			cgroups = append(cgroups, e.Cgroup)
		}
	}
	// Their descendants die with them, by the kernel's doing, but not at once.
	var descendants []process
	boot, err := bootID()
	if err != nil {
		return err
	}
	for _, pid := range marked(id) {
		if start, err := startTime(pid); err == nil {
			descendants = append(descendants, process{PID: pid, Start: start, Boot: boot})
		}
	}
	for _, p := range processes {
		if p.alive() {
			if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("end process %d: %w", p.PID, err)
			}
		}
	}
	// Those that are slow get a push.
	if err := poll(ctx, "processes to end", 60*time.Second, 50*time.Millisecond, func(context.Context) error {
		left := marked(id)
		for _, g := range cgroups {
			left = append(left, members(g)...)
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		for _, p := range slices.Concat(processes, descendants) {
			if p.alive() || p.ending() {
				left = append(left, p.PID)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := poll(ctx, "cgroups to empty", 30*time.Second, 100*time.Millisecond, func(context.Context) error {
		var errs []error
		for _, g := range cgroups {
			errs = append(errs, removeCgroup(g))
		}
		return errors.Join(errs...)
	}); err != nil {
		return err
	}
	// The link to the node goes with the node's network namespace, which the
	// kernel keeps while it still tries to close connections. Minutes are too
	// long to wait.
	for _, l := range linksWith(linkAddress(id)) {
		ip, err := lookPath("ip")
		if err != nil {
			return err
		}
		if _, err := output(command(ctx, ip, "link", "del", l)); err != nil && !strings.Contains(err.Error(), "Cannot find device") {
			return err
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], dir+"/")) {
			return fmt.Errorf("%s is mounted inside the state directory, which is therefore not removed", f[4])
		}
	}
	// The journal goes last: while anything is left, Down must know of it.
	names, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, n := range names {
		if n.Name() != journalFile {
			if err := os.RemoveAll(filepath.Join(dir, n.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}

// marked returns the processes whose environment holds the cluster's id.
func marked(id string) []int {
	if id == "" {
		return nil
	}
	want := []byte(markerEnv + "=" + id)
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, err := os.ReadFile(d + "/environ")
		if err != nil {
			continue
		}
		for v := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(v, want) {
				if pid, err := strconv.Atoi(filepath.Base(d)); err == nil {
					pids = append(pids, pid)
				}
				break
			}
		}
	}
	return pids
}

// linkAddress is the hardware address of the host's end of the link to the
// node of the cluster with this id. It marks the link as ours from its first
// moment on.
func linkAddress(id string) string {
	sum := sha256.Sum256([]byte(id))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}.String()
}

// linksWith returns the names of the links with a hardware address.
func linksWith(address string) []string {
	var names []string
	files, _ := filepath.Glob("/sys/class/net/*/address")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == address {
			names = append(names, filepath.Base(filepath.Dir(f)))
		}
	}
	return names
}

// members returns the processes in a cgroup and those below it.
func members(cgroup string) []int {
	var pids []int
	filepath.WalkDir(cgroup, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // A cgroup that is gone by now has no processes.
		}
		b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// removeCgroup removes a cgroup and those below it, deepest first.
func removeCgroup(cgroup string) error {
	names, err := os.ReadDir(cgroup)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		if n.IsDir() {
			if err := removeCgroup(filepath.Join(cgroup, n.Name())); err != nil {
				return err
			}
		}
	}
	if err := syscall.Rmdir(cgroup); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("remove cgroup %s: %w", cgroup, err)
	}
	return nil
}
