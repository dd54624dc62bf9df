// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/follow"
	"kubevirtbmc.dev/pkg/logkey"
	"kubevirtbmc.dev/services/power/internal/record"
	"kubevirtbmc.dev/services/power/internal/transition"
)

const (
	defaultLease         = 10 * time.Second
	defaultShutdownGrace = 90 * time.Second
	defaultWorkers       = 16

	// verbTimeout bounds a request to the hypervisor, which goes on when the
	// process is asked to end.
	verbTimeout = 20 * time.Second
	// repeatAfter is when a step that was accepted and shows no effect is taken
	// again.
	repeatAfter = 3 * time.Second
	// startSettle is how long a start may have been accepted without any sign
	// of it.
	startSettle = 5 * time.Second

	// releaseTimeout bounds the handing over of operations at the end.
	releaseTimeout = 5 * time.Second

	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second

	// maxGrace is the longest grace period that a guest is asked with.
	maxGrace = 365 * 24 * time.Hour

	// writeAttempts is how often a compare-and-swap is tried, and how many writes
	// to a template may be needed until it shows what is wanted.
	writeAttempts = 20
)

// Hypervisor is what the engine needs of one.
type Hypervisor interface {
	hypervisor.Machines
	hypervisor.Power
	hypervisor.Boot
	hypervisor.State
}

// Config of an engine.
type Config struct {
	Hypervisor Hypervisor
	Log        *slog.Logger
	// Metrics counts operations; nil: nobody does.
	Metrics *Metrics
	// Holder names this process among those that share the machines. A process
	// that comes back under the same name goes on at once, another one when the
	// lease is over.
	Holder string
	// Lease is how long an operation stays with a holder that shows no life,
	// past the time that a step's request may take; 10 s when 0.
	Lease time.Duration
	// ShutdownGrace is the least grace period of a graceful shutdown while no
	// guest agent is connected; 90 s when 0. libvirt may wait 60 s for an agent
	// before it tries ACPI.
	ShutdownGrace time.Duration
	// Trouble is told of operations that failed and of boot overrides that the
	// machine started without, in words; it must return at once. Nil: the log alone
	// tells of them.
	Trouble func(machine hypervisor.Ref, action, message string)
	// Admits tells whether one-time boot overrides of a machine are carried out
	// when its instances are made (package bootoverride), rather than by its
	// template; nil: none are.
	Admits func(hypervisor.Ref) bool
	// Events keeps the event logs of the machines' BMCs; nil: nobody does.
	Events EventLog
}

// Engine carries out power actions and boot overrides.
type Engine struct {
	hypervisor    Hypervisor
	log           *slog.Logger
	metrics       *Metrics
	holder        string
	lease         time.Duration
	shutdownGrace time.Duration
	queue         *queue
	followers     *follow.Hub
	boot          bootMethod
	tell          func(machine hypervisor.Ref, action, message string)
	admits        func(hypervisor.Ref) bool
	teller        *teller
	unsubscribe   func()

	mu      sync.Mutex
	entries map[hypervisor.Ref]*entry
}

// entry is what an engine remembers of a machine while it lives.
type entry struct {
	// work has room for whoever takes a step or sets what the machine boots from.
	work chan struct{}

	mu      sync.Mutex
	timer   *time.Timer
	history history
	// held are the operations that this process has accepted or taken over; false
	// while one is being written down.
	held map[string]bool
	// last is the last operation that ended or was replaced here.
	last record.Operation
	// failures counts refusals of the hypervisor in a row, trouble is the last; what
	// was refused is not tried again before retryAt.
	failures int
	trouble  string
	retryAt  time.Time
	// unsettled counts the steps in a row that have not settled the boot override.
	unsettled int
	// foreign is the lease of another process that was seen last, since then.
	foreign foreignLease
	// see says that what the instance shows of the hardware is to be kept.
	see bool
	// undo tells of overrides that could not be set and may be there all the same;
	// nil when there are none.
	undo *undo
}

// foreignLease is another process's lease of an operation.
type foreignLease struct {
	operation string
	lease     time.Time
	since     time.Time
}

// lock waits until nobody else works on the machine.
func (e *entry) lock(ctx context.Context) error {
	select {
	case e.work <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *entry) unlock() { <-e.work }

// New makes an engine. Run makes it work.
func New(config Config) *Engine {
	e := &Engine{
		hypervisor:    config.Hypervisor,
		log:           config.Log,
		metrics:       config.Metrics,
		holder:        config.Holder,
		lease:         config.Lease,
		shutdownGrace: config.ShutdownGrace,
		tell:          config.Trouble,
		admits:        config.Admits,
		queue:         newQueue(),
		followers:     follow.NewHub(),
		entries:       map[hypervisor.Ref]*entry{},
	}
	if e.holder == "" {
		e.holder = rand.Text()
	}
	if e.lease == 0 {
		e.lease = defaultLease
	}
	if e.shutdownGrace == 0 {
		e.shutdownGrace = defaultShutdownGrace
	}
	e.teller = newTeller(e, config.Events)
	e.boot = bootMethods{template: templatePatch{engine: e}, admission: admission{engine: e}}
	e.unsubscribe = e.hypervisor.Subscribe(e.changed)
	return e
}

// Run carries out operations until the context ends. A step that is being taken
// then is still finished, and what is under way is left to other processes.
func (e *Engine) Run(ctx context.Context) error {
	defer e.unsubscribe()
	if err := e.resume(ctx); err != nil {
		return err
	}
	var workers sync.WaitGroup
	e.teller.run(ctx, &workers)
	for range defaultWorkers {
		workers.Go(func() {
			for {
				ref, ok := e.queue.next(ctx)
				if !ok {
					return
				}
				again := e.reconcile(context.WithoutCancel(ctx), ref)
				// Before done: else another worker may set the timer that this one
				// then takes away.
				e.later(ref, again)
				e.queue.done(ref)
			}
		})
	}
	workers.Wait()
	e.stopTimers()
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	e.release(releasing)
	return nil
}

// resume looks at all machines once: at operations that an earlier process has
// left behind. It waits for a hypervisor that can't tell yet.
func (e *Engine) resume(ctx context.Context) error {
	for {
		machines, err := e.hypervisor.List()
		switch {
		case err == nil:
			for _, m := range machines {
				e.queue.add(m.Ref)
				e.teller.changed(m.Ref)
			}
			return nil
		case !errors.Is(err, hypervisor.ErrUnavailable):
			return fmt.Errorf("list machines: %w", err)
		}
		select {
		case <-time.After(retryMin):
		case <-ctx.Done():
			return nil
		}
	}
}

// changed is told of each change of a machine.
func (e *Engine) changed(ref hypervisor.Ref) {
	e.followers.Changed(ref)
	e.queue.add(ref)
	e.teller.changed(ref)
}

// Follow returns a channel that has a value after each change of a machine's
// status.
func (e *Engine) Follow(ref hypervisor.Ref) (changes <-chan struct{}, cancel func()) {
	return e.followers.Follow(ref)
}

func (e *Engine) entry(ref hypervisor.Ref) *entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	found := e.entries[ref]
	if found == nil {
		found = &entry{work: make(chan struct{}, 1)}
		e.entries[ref] = found
	}
	return found
}

// forget drops what is remembered of a machine that is gone.
func (e *Engine) forget(ref hypervisor.Ref) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.entries, ref)
}

// later has a machine looked at again after a while; 0: not by time alone.
func (e *Engine) later(ref hypervisor.Ref, after time.Duration) {
	e.mu.Lock()
	entry := e.entries[ref]
	e.mu.Unlock()
	if entry == nil {
		return
	}
	entry.mu.Lock()
	defer entry.mu.Unlock()
	if entry.timer != nil {
		entry.timer.Stop()
		entry.timer = nil
	}
	if after > 0 {
		entry.timer = time.AfterFunc(after, func() { e.queue.add(ref) })
	}
}

func (e *Engine) stopTimers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, entry := range e.entries {
		entry.mu.Lock()
		if entry.timer != nil {
			entry.timer.Stop()
		}
		entry.mu.Unlock()
	}
}

// errUnchanged ends an update that has nothing to write.
var errUnchanged = errors.New("unchanged")

// read returns a machine and its record, with what an earlier version has left
// adopted.
func (e *Engine) read(ref hypervisor.Ref) (*hypervisor.Machine, *record.Record, error) {
	m, err := e.hypervisor.Get(ref)
	if err != nil {
		return nil, nil, err
	}
	rec, err := record.Parse(m.State)
	if err != nil {
		return nil, nil, fmt.Errorf("machine %s: %w", ref, err)
	}
	adopt(m, rec)
	return m, rec, nil
}

// update changes a machine's record by compare-and-swap: f decides on what is
// there and may be called several times.
func (e *Engine) update(ctx context.Context, ref hypervisor.Ref, f func(*hypervisor.Machine, *record.Record) error) error {
	for attempt := range writeAttempts {
		m, rec, err := e.read(ref)
		if err != nil {
			return err
		}
		if err := f(m, rec); err != nil {
			if errors.Is(err, errUnchanged) {
				return nil
			}
			return err
		}
		document, err := rec.Document()
		if err != nil {
			return err
		}
		if bytes.Equal(document, m.State) {
			return nil
		}
		err = e.setState(ctx, ref, m.State, document)
		if !errors.Is(err, hypervisor.ErrStale) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(attempt) * time.Millisecond):
		}
	}
	return fmt.Errorf("%w: the machine's state changes too fast", hypervisor.ErrUnavailable)
}

func (e *Engine) setState(ctx context.Context, ref hypervisor.Ref, old, state []byte) error {
	ctx, cancel := context.WithTimeout(ctx, verbTimeout)
	defer cancel()
	return e.hypervisor.SetState(ctx, ref, old, state)
}

// observed gathers what decisions about an operation rest on.
func (e *Engine) observed(m *hypervisor.Machine, rec *record.Record, op *record.Operation) transition.Observed {
	o := transition.Observed{
		State:            transition.Observe(m),
		Strategy:         m.RunStrategy,
		StartQueued:      m.StartQueued,
		StartSent:        op != nil && recently(op.StartSent, startSettle),
		Ending:           transition.Ending(m),
		NeedsNewInstance: e.needsNewInstance(m, rec),
	}
	if i := m.Instance; i != nil {
		o.Fresh = op != nil && i.UID != op.InstanceUID
		o.Ran = i.Phase == hypervisor.PhaseSucceeded || !i.Started.IsZero()
		o.AtOnce = i.GracePeriod == 0
	}
	if op.Active() && m.RunStrategy == hypervisor.RunStrategyHalted {
		// Neither step leaves a machine Halted. Without an instance the strategy
		// may not have been restored yet.
		o.Overruled = op.Step == transition.Start || op.Step == transition.RestoreStrategy && m.Instance != nil
	}
	return o
}

// recently tells whether something was within the last while. Another process's
// clock may be wrong, ours may be behind it a little.
func recently(at time.Time, while time.Duration) bool {
	return time.Since(at).Abs() < while
}

// trouble tells of what was accepted and then failed.
func (e *Engine) trouble(ref hypervisor.Ref, action, message string) {
	if e.tell != nil {
		e.tell(ref, action, message)
	}
}

func (e *Engine) logger(ref hypervisor.Ref) *slog.Logger {
	return e.log.With(slog.String(logkey.Namespace, ref.Namespace), slog.String(logkey.VM, ref.Name))
}
