// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

//go:build integration

package cluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// upEnv makes the test binary bring up a cluster instead of running tests: it
// holds the level and the directory.
const upEnv = "KUBEVIRTBMC_TEST_UP"

func TestMain(m *testing.M) {
	if level, dir, ok := strings.Cut(os.Getenv(upEnv), ":"); ok {
		if _, err := Up(context.Background(), Options{Level: Level(level), Dir: dir}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Up is killed at several moments; Down, and likewise the next Up, has to leave
// nothing of it.
func TestDown_after_a_crash_of_Up(t *testing.T) {
	for _, o := range []Options{{Level: LevelAPI}, {Level: LevelKubeVirt}} {
		if err := Build(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	said := func(text string) func(string, string) bool {
		return func(_, line string) bool { return strings.Contains(line, text) }
	}
	journalHas := func(text string) func(string, string) bool {
		return func(dir, _ string) bool {
			b, _ := os.ReadFile(filepath.Join(dir, journalFile))
			return strings.Contains(string(b), text)
		}
	}
	root := t.TempDir()
	for name, test := range map[string]struct {
		level Level
		// when is asked every few milliseconds, with the last line of output.
		when func(dir, line string) bool
	}{
		"api, as soon as its first process is recorded":       {LevelAPI, journalHas(`"process"`)},
		"api, with the API server ready":                      {LevelAPI, said("API server is ready")},
		"kubevirt, with the first cgroup recorded":            {LevelKubeVirt, journalHas(`"cgroup"`)},
		"kubevirt, as soon as its first process is recorded":  {LevelKubeVirt, journalHas(`"process"`)},
		"kubevirt, as soon as the second node's is recorded":  {LevelKubeVirt, journalHas(nodeName(1) + `"}` + "\n" + `{"process"`)},
		"kubevirt, with the API server ready":                 {LevelKubeVirt, said("API server is ready")},
		"kubevirt, with containers running under the kubelet": {LevelKubeVirt, func(dir, line string) bool { return said("operator is at work")(dir, line) && waitForContainer(dir) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp(root, "testbed")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { Down(context.Background(), dir) }) // if the test ends early
			killUp(t, test.level, dir, test.when)
			id := journalID(t, dir)
			before := leftovers(dir, id)
			t.Logf("left by the crash: %d things, such as %q", len(before), before[:min(3, len(before))])
			if len(before) == 0 {
				t.Error("the crash left nothing, so that the test shows nothing")
			}
			if err := Down(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
			if left := leftovers(dir, id); len(left) > 0 {
				t.Errorf("left after Down: %q", left)
			}
		})
	}
	t.Run("the next Up cleans too", func(t *testing.T) {
		dir := filepath.Join(root, "next")
		t.Cleanup(func() { Down(context.Background(), dir) })
		killUp(t, LevelAPI, dir, said("API server is ready"))
		id := journalID(t, dir)
		c, err := Up(t.Context(), Options{Level: LevelAPI, Dir: dir, Log: t.Output()})
		if err != nil {
			t.Fatal(err)
		}
		if pids := marked(id); len(pids) > 0 {
			t.Errorf("processes of the crashed cluster still run: %v", pids)
		}
		second := journalID(t, dir)
		if err := c.Down(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := leftovers(dir, second); len(left) > 0 {
			t.Errorf("left after Down: %q", left)
		}
	})
}

// waitForContainer waits until a container runs below one of the cluster's
// cgroups, so that there is more to remove than the node's own processes.
func waitForContainer(dir string) bool {
	entries, _ := readJournal(dir)
	for range 300 {
		for _, e := range entries {
			if strings.Contains(e.Cgroup, "/pids/") && len(podsBelow(e.Cgroup)) > 0 {
				return true
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

func podsBelow(cgroup string) []int {
	return members(filepath.Join(cgroup, "kubepods"))
}

// killUp runs Up in a process of its own and kills that when the time has come.
func killUp(t *testing.T, level Level, dir string, when func(dir, line string) bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), upEnv+"="+string(level)+":"+dir)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			lines <- s.Text()
		}
	}()
	line := ""
	for deadline := time.Now().Add(3 * time.Minute); !when(dir, line); time.Sleep(2 * time.Millisecond) {
		select {
		case l, ok := <-lines:
			if !ok {
				cmd.Wait()
				t.Fatalf("Up ended before the moment to kill it came; it said %q", line)
			}
			line = l
		default:
		}
		if time.Now().After(deadline) {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatal("the moment to kill Up did not come")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
}

func journalID(t *testing.T, dir string) string {
	t.Helper()
	entries, err := readJournal(dir)
	if err != nil || len(entries) == 0 || entries[0].ID == "" {
		t.Fatalf("journal of %s: %v, %v", dir, entries, err)
	}
	return entries[0].ID
}

// leftovers lists what is on the machine of the cluster with this id.
func leftovers(dir, id string) []string {
	var left []string
	if _, err := os.Stat(dir); err == nil {
		left = append(left, "directory "+dir)
	}
	if _, err := os.Stat(dir + ".lock"); err == nil {
		left = append(left, "file "+dir+".lock")
	}
	for _, pid := range marked(id) {
		left = append(left, fmt.Sprintf("process %d", pid))
	}
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, f := range files {
		if b, _ := os.ReadFile(f); strings.Contains(string(b), id) {
			left = append(left, "member of a cgroup "+filepath.Dir(f))
		}
	}
	own, _ := ownCgroups()
	for _, c := range controllers {
		if own[c] == "" {
			continue
		}
		dirs, _ := filepath.Glob(filepath.Join(own[c], "kubevirtbmc-"+id+"*"))
		for _, d := range dirs {
			left = append(left, "cgroup "+d)
		}
	}
	for _, l := range linksWith(linkAddress(id)) {
		left = append(left, "link "+l)
		routes, _ := exec.Command("ip", "route", "show", "dev", l).Output()
		for r := range strings.Lines(string(routes)) {
			left = append(left, "route "+strings.TrimSpace(r))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for m := range strings.Lines(string(mounts)) {
		if strings.Contains(m, dir) || strings.Contains(m, id) {
			left = append(left, "mount "+strings.TrimSpace(m))
		}
	}
	slices.Sort(left)
	return left
}
