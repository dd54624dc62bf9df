//go:build integration

// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// pause is how long a client rests between two calls. It only bounds what the
// loops cost.
const pause = 50 * time.Millisecond

// attempt is one call of a client.
type attempt struct {
	start, end time.Time
	err        error
}

// loop is a client that calls again and again.
type loop struct {
	name string
	stop func()

	mu       sync.Mutex
	attempts []attempt
}

// newLoop calls until stop, or the test ends. What a call that is cut off by that
// says does not count.
func newLoop(t *testing.T, name string, call func(ctx context.Context) error) *loop {
	return newPacedLoop(t, name, 0, 0, call)
}

// newPacedLoop is newLoop with a call in each interval, the first after an offset.
func newPacedLoop(t *testing.T, name string, offset, interval time.Duration, call func(ctx context.Context) error) *loop {
	ctx, cancel := context.WithCancel(context.Background())
	l := &loop{name: name}
	var group sync.WaitGroup
	l.stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	t.Cleanup(l.stop)
	group.Go(func() {
		for wait := offset; ; wait = max(pause, interval-time.Since(l.last())) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			a := attempt{start: time.Now()}
			a.err = call(ctx)
			a.end = time.Now()
			if ctx.Err() != nil {
				return
			}
			l.mu.Lock()
			l.attempts = append(l.attempts, a)
			l.mu.Unlock()
		}
	})
	return l
}

// last is when the last call began.
func (l *loop) last() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.attempts[len(l.attempts)-1].start
}

func (l *loop) list() []attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.attempts)
}

// outage is the longest time from one success to the next, or to the loop's end,
// which was at or after a moment.
func (l *loop) outage(since time.Time) time.Duration {
	var longest time.Duration
	last := since
	list := l.list()
	for _, a := range list {
		if a.err == nil && a.end.After(since) {
			longest = max(longest, a.end.Sub(last))
			last = a.end
		}
	}
	if len(list) > 0 {
		longest = max(longest, list[len(list)-1].end.Sub(last))
	}
	return longest
}

// failures counts calls that failed, and the most of them in a row.
func (l *loop) failures() (total, row int) {
	run := 0
	for _, a := range l.list() {
		if a.err == nil {
			run = 0
			continue
		}
		total++
		run++
		row = max(row, run)
	}
	return total, row
}

// errors are what the failures said.
func (l *loop) errors() string {
	var list []string
	for _, a := range l.list() {
		if a.err != nil {
			list = append(list, a.start.Format("15:04:05.000")+"-"+a.end.Format("05.000")+" "+l.name+": "+a.err.Error())
		}
	}
	return strings.Join(list, "\n")
}

// merged is what several clients saw together: an outage is when none of them had
// success. One alone may be busy with a call that can't succeed any more.
func merged(loops []*loop) *loop {
	all := &loop{name: loops[0].name}
	for _, l := range loops {
		all.attempts = append(all.attempts, l.list()...)
	}
	slices.SortFunc(all.attempts, func(a, b attempt) int { return a.end.Compare(b.end) })
	return all
}

// loops are clients of one BMC over both protocols.
func (b *bmc) loops(t *testing.T) []*loop {
	list := []*loop{
		newLoop(t, "ipmitool", func(ctx context.Context) error {
			_, err := b.ipmitool(ctx, "power", "status")
			return err
		}),
		newLoop(t, "curl", func(ctx context.Context) error {
			_, err := b.curl(ctx, system1, "")
			return err
		}),
	}
	for _, l := range list {
		eventually(t, l.name+" has begun", func() error {
			if attempts := l.list(); len(attempts) > 0 {
				return attempts[len(attempts)-1].err
			}
			return context.DeadlineExceeded
		})
	}
	return list
}

func stopAll(list []*loop) {
	for _, l := range list {
		l.stop()
	}
}
