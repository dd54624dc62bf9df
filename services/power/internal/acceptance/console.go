// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/contract"
	consolev1 "kubevirtbmc.dev/proto/gen/go/bmc/console/v1"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
)

// consoles is about the serial console and those who share it.
var consoles = map[string]func(*bed){
	"slow reader":       slowReader,
	"many type":         manyType,
	"power cycle":       consoleOverPowerCycle,
	"taken by others":   consoleTaken,
	"moves":             consoleMoves,
	"no serial console": noConsole,
}

const (
	connected    = consolev1.ConsoleState_CONSOLE_STATE_CONNECTED
	disconnected = consolev1.ConsoleState_CONSOLE_STATE_DISCONNECTED
)

// viewer is a client of ConsoleService.
type viewer struct {
	*bed
	stream grpc.BidiStreamingClient[consolev1.ConnectRequest, consolev1.ConnectResponse]

	mu     sync.Mutex
	output bytes.Buffer
	states []consolev1.ConsoleState
	err    error
}

// watch opens a machine's console; the viewer reads nothing yet.
func (b *bed) watch(ref hypervisor.Ref) *viewer {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	stream, err := b.console.Connect(ctx)
	if err != nil {
		b.Fatal(err)
	}
	v := &viewer{bed: b, stream: stream}
	v.send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Open{Open: &consolev1.Open{Bmc: bmc(ref)}}})
	return v
}

// reading opens a machine's console and reads all that comes.
func (b *bed) reading(ref hypervisor.Ref) *viewer {
	b.Helper()
	v := b.watch(ref)
	go func() {
		for {
			response, err := v.stream.Recv()
			v.mu.Lock()
			v.output.Write(response.GetOutput())
			if response.GetState() != 0 {
				v.states = append(v.states, response.GetState())
			}
			v.err = err
			v.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return v
}

func (v *viewer) send(request *consolev1.ConnectRequest) {
	v.Helper()
	if err := v.stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
		v.Fatal(err)
	}
}

func (v *viewer) types(text string) {
	v.Helper()
	v.send(&consolev1.ConnectRequest{Payload: &consolev1.ConnectRequest_Input{Input: []byte(text)}})
}

// await waits until the viewer has what is looked for.
func (v *viewer) await(what string, is func() bool) {
	v.Helper()
	for end := time.Now().Add(v.Timeout); ; time.Sleep(10 * time.Millisecond) {
		v.mu.Lock()
		done, err, shown := is(), v.err, v.output.String()
		v.mu.Unlock()
		switch {
		case done:
			return
		case err != nil:
			v.Fatalf("console ended before %s: %v", what, err)
		case time.Now().After(end):
			v.Fatalf("console: no %s in time, but\n%s", what, shown[max(0, len(shown)-1000):])
		}
	}
}

func (v *viewer) shows(text string) {
	v.Helper()
	v.await(shorten(text), func() bool { return strings.Contains(v.output.String(), text) })
}

func (v *viewer) state(want consolev1.ConsoleState) {
	v.Helper()
	v.await(want.String(), func() bool { return len(v.states) > 0 && v.states[len(v.states)-1] == want })
}

// guestIsUp waits until the guest has said what it says by itself: it would say
// it in the middle of what is typed.
func (v *viewer) guestIsUp() {
	v.Helper()
	v.await("sign of the guest", func() bool {
		return strings.Contains(v.output.String(), "login: ") || strings.Contains(v.output.String(), "Guest booted from")
	})
}

func shorten(text string) string {
	if len(text) > 40 {
		text = text[:40] + "..."
	}
	return text
}

// numbered makes text of which no two places look the same.
func numbered(mark string, lines int) []string {
	text := make([]string, lines)
	for n := range text {
		text[n] = mark + strings.Repeat("-", n%7) + string(rune('a'+n%26)) + string(rune('a'+n/26%26)) + string(rune('a'+n/676))
	}
	return text
}

// slowReader: one who does not read holds up nobody, and loses nothing without
// being told; the others get each byte once and in order.
func slowReader(b *bed) {
	b.echoes()
	const size, pieces = 16 << 10, 64
	ref, _ := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways})
	slow := b.watch(ref)
	quick := b.reading(ref)
	quick.guestIsUp()
	var typed strings.Builder
	for n := range pieces {
		piece := strings.Repeat(numbered("<", pieces)[n]+">", size/16)
		typed.WriteString(piece)
		quick.types(piece)
		if n%4 == 3 { // On a busy machine it would be slow itself.
			quick.shows(typed.String())
		}
	}
	if opened := b.view.opened(); opened != 1 {
		b.Errorf("%d connections were opened to the machine, want 1", opened)
	}
	// How much is on its way to it before it counts as slow is gRPC's affair.
	var late strings.Builder
	for !strings.Contains(late.String(), typed.String()) {
		response, err := slow.stream.Recv()
		if err != nil {
			if got := grpcstatus.ReasonOf(err); got != errorsv1.Reason_REASON_LIMIT_REACHED {
				b.Errorf("the slow reader got %s (%v), want it to be told that it is too slow", got, err)
			}
			return
		}
		late.Write(response.GetOutput())
	}
}

// manyType: the input of several is merged by whole messages, each client's in
// its order.
func manyType(b *bed) {
	b.echoes()
	const each = 200
	marks := []string{"A", "B", "C"}
	ref, _ := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways})
	viewers := []*viewer{b.reading(ref), b.reading(ref), b.reading(ref)}
	var typing sync.WaitGroup
	for n, v := range viewers {
		v.guestIsUp()
		typing.Go(func() {
			for _, word := range numbered(marks[n], each) {
				v.types("[" + word + "]")
			}
		})
	}
	typing.Wait()
	for _, v := range viewers {
		for n, mark := range marks {
			words := numbered(mark, each)
			v.await("what all have typed, in order", func() bool {
				rest := v.output.String()
				for _, word := range words {
					_, after, found := strings.Cut(rest, "["+word+"]")
					if !found {
						return false
					}
					rest = after
				}
				return true
			})
			v.mu.Lock()
			if got := strings.Count(v.output.String(), "["+mark); got != each {
				b.Errorf("viewer shows %d words of client %d, want %d", got, n, each)
			}
			v.mu.Unlock()
		}
	}
	if opened := b.view.opened(); opened != 1 {
		b.Errorf("%d connections were opened to the machine, want 1", opened)
	}
}

// consoleOverPowerCycle: whoever watches stays connected over a new instance.
func consoleOverPowerCycle(b *bed) {
	ref := b.machine(contract.Spec{RunStrategy: hypervisor.RunStrategyManual})
	v, other := b.reading(ref), b.reading(ref)
	v.state(disconnected)
	b.do(ref, on)
	for n := range 2 {
		for _, v := range []*viewer{v, other} {
			v.state(connected)
		}
		if b.Guest.Echoes {
			word := numbered("echo", 2)[n]
			v.types(word)
			v.shows(word)
			other.shows(word)
		}
		b.do(ref, powerCycle)
	}
	v.state(connected)
	b.do(ref, forceOff)
	v.state(disconnected)
}

// consoleTaken: a client of the hypervisor's own has the console until one of
// ours types.
func consoleTaken(b *bed) {
	ref, _ := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways})
	v := b.reading(ref)
	v.state(connected)
	taken, err := b.Hypervisor.OpenConsole(b.Context(), ref)
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, taken)
	}()
	v.state(disconnected)
	select {
	case <-ended:
		b.Fatal("the console was taken back at once")
	case <-time.After(b.Quiet):
	}
	v.types("mine")
	v.state(connected)
	<-ended
	if b.Guest.Echoes {
		v.types("mine again")
		v.shows("mine again")
	}
}

// consoleMoves: a live migration is none of the watchers' business.
func consoleMoves(b *bed) {
	if b.Migrate == nil {
		b.Skip("this bench has no second node")
	}
	ref, instance := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways})
	v := b.reading(ref)
	v.state(connected)
	before := b.view.opened()
	if err := b.Migrate(ref); err != nil {
		b.Fatal(err)
	}
	v.await("a new connection", func() bool { return b.view.opened() > before && v.states[len(v.states)-1] == connected })
	if b.Guest.Echoes {
		v.types("after the move")
		v.shows("after the move")
	}
	if got := b.status(ref).GetInstanceId(); got != instance {
		b.Errorf("instance is %s, was %s", got, instance)
	}
}

func noConsole(b *bed) {
	ref, _ := b.on(contract.Spec{RunStrategy: hypervisor.RunStrategyAlways, NoSerialConsole: true})
	_, err := b.watch(ref).stream.Recv()
	b.reason("console of a machine without", err, errorsv1.Reason_REASON_NO_CONSOLE)
}

// echoes skips a test where nobody answers fast enough: guests that run for real
// poll an emulated port.
func (b *bed) echoes() {
	if !b.Guest.Echoes || b.Guest.BootedFrom == nil {
		b.Skip("the guests of this bench do not echo, or only slowly")
	}
}
