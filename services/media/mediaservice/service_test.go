// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package mediaservice_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/testing/protocmp"

	"kubevirtbmc.dev/pkg/grpcserver/servertest"
	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/hypervisor"
	"kubevirtbmc.dev/pkg/hypervisor/simulator"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	mediav1 "kubevirtbmc.dev/proto/gen/go/bmc/media/v1"
	referencev1 "kubevirtbmc.dev/proto/gen/go/bmc/reference/v1"
	"kubevirtbmc.dev/services/media/mediaservice"
)

const (
	one = "http://images.example/one.iso"
	two = "https://images.example/two.iso"
)

var (
	bmc     = &referencev1.BMCReference{Namespace: "default", Name: "bmc-0"}
	machine = hypervisor.Ref{Namespace: "default", Name: "sim-0"}
)

// logBuffer is a log that tests look into.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// bed is the service over gRPC, on a simulated machine.
type bed struct {
	*testing.T
	simulator *simulator.Simulator
	media     mediav1.MediaServiceClient
	log       *logBuffer
}

func newBed(t *testing.T, spec simulator.Spec) *bed {
	t.Helper()
	s := simulator.New(simulator.Config{Delays: simulator.FastDelays()})
	spec.Ref = machine
	if err := s.AddMachine(spec); err != nil {
		t.Fatal(err)
	}
	written := &logBuffer{}
	log := slog.New(slog.NewJSONHandler(written, &slog.HandlerOptions{Level: slog.LevelDebug}))
	registry := prometheus.NewRegistry()
	service, err := mediaservice.New(mediaservice.Config{
		Hypervisor: s,
		Resolver:   hypervisor.FixedNames{{Namespace: "default", Name: "bmc-0"}: machine},
		Log:        log, Metrics: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	connection, _ := servertest.Start(t, service, log, registry)
	return &bed{T: t, simulator: s, media: mediav1.NewMediaServiceClient(connection), log: written}
}

func (b *bed) insert(slot, url string) *mediav1.MediaSlot {
	b.Helper()
	response, err := b.media.InsertMedia(b.Context(), &mediav1.InsertMediaRequest{Bmc: bmc, Slot: slot, ImageUrl: url})
	if err != nil {
		b.Fatal(err)
	}
	return response.GetSlot()
}

func (b *bed) eject(slot string) *mediav1.MediaSlot {
	b.Helper()
	response, err := b.media.EjectMedia(b.Context(), &mediav1.EjectMediaRequest{Bmc: bmc, Slot: slot})
	if err != nil {
		b.Fatal(err)
	}
	return response.GetSlot()
}

func (b *bed) slot(id string) *mediav1.MediaSlot {
	b.Helper()
	response, err := b.media.ListMedia(b.Context(), &mediav1.ListMediaRequest{Bmc: bmc})
	if err != nil {
		b.Fatal(err)
	}
	for _, slot := range response.GetSlots() {
		if slot.GetSlot() == id {
			return slot
		}
	}
	b.Fatalf("no slot %s", id)
	return nil
}

func (b *bed) until(id string, want mediav1.MediaState) *mediav1.MediaSlot {
	b.Helper()
	for range 2000 {
		if slot := b.slot(id); slot.GetState() == want {
			return slot
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.Fatalf("slot %s is %v, want %s", id, b.slot(id), want)
	return nil
}

func (b *bed) reason(what string, err error, want errorsv1.Reason) {
	b.Helper()
	if got := grpcstatus.ReasonOf(err); err == nil || got != want {
		b.Errorf("%s: got %s (%v), want %s", what, got, err, want)
	}
}

func TestInsertAndEject(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	if slot := b.eject("CD1"); slot.GetState() != mediav1.MediaState_MEDIA_STATE_EMPTY {
		t.Errorf("an empty slot was ejected to %v", slot)
	}
	importing := &mediav1.MediaSlot{
		Slot: "CD1", Device: "cdrom", State: mediav1.MediaState_MEDIA_STATE_IMPORTING, ImageUrl: one,
		Message: "importing", WriteProtected: true,
	}
	ignore := protocmp.IgnoreFields(&mediav1.MediaSlot{}, "last_transition_time", "progress_percent")
	if diff := cmp.Diff(importing, b.insert("CD1", one), protocmp.Transform(), ignore); diff != "" {
		t.Errorf("slot after the insert mismatch (-want +got)\n%s", diff)
	}
	inserted := &mediav1.MediaSlot{
		Slot: "CD1", Device: "cdrom", State: mediav1.MediaState_MEDIA_STATE_INSERTED, ImageUrl: one, WriteProtected: true,
	}
	got := b.until("CD1", mediav1.MediaState_MEDIA_STATE_INSERTED)
	if diff := cmp.Diff(inserted, got, protocmp.Transform(), ignore); diff != "" {
		t.Errorf("slot after the import mismatch (-want +got)\n%s", diff)
	}
	if again := b.insert("CD1", one); !cmp.Equal(got, again, protocmp.Transform()) {
		t.Errorf("the same URL again changed the slot from %v to %v", got, again)
	}
	if slot := b.insert("CD1", two); slot.GetState() != mediav1.MediaState_MEDIA_STATE_IMPORTING || slot.GetImageUrl() != two {
		t.Errorf("another URL did not replace the medium: %v", slot)
	}
	b.until("CD1", mediav1.MediaState_MEDIA_STATE_INSERTED)
	for range 2 {
		if slot := b.eject("CD1"); slot.GetState() != mediav1.MediaState_MEDIA_STATE_EMPTY || slot.GetImageUrl() != "" {
			t.Errorf("ejected slot is %v", slot)
		}
	}
	if got := len(b.simulator.Done(machine)); got != 3 {
		t.Errorf("the hypervisor saw %v, want two inserts and one eject", b.simulator.Done(machine))
	}
}

func TestInsert_againAfterAFailure(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	if err := b.simulator.FailImport(machine, "cdrom", "404 Not Found"); err != nil {
		t.Fatal(err)
	}
	b.insert("CD1", one)
	if slot := b.until("CD1", mediav1.MediaState_MEDIA_STATE_FAILED); slot.GetMessage() != "404 Not Found" {
		t.Errorf("failed slot says %q", slot.GetMessage())
	}
	b.insert("CD1", one)
	b.until("CD1", mediav1.MediaState_MEDIA_STATE_INSERTED)
}

func TestInsert_clientsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			if _, err := b.media.InsertMedia(t.Context(), &mediav1.InsertMediaRequest{Bmc: bmc, Slot: "CD1", ImageUrl: one}); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	if got := b.simulator.Done(machine); len(got) != 1 {
		t.Errorf("the hypervisor saw %v, want one insert", got)
	}
}

func TestSlotsOfSomebodyElse(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{Trays: []simulator.TraySpec{{Name: "tools", Volume: "virtio-win"}, {Name: "bmc"}}})
	if slot := b.slot("CD1"); !slot.GetForeign() || slot.GetState() != mediav1.MediaState_MEDIA_STATE_INSERTED || slot.GetImageUrl() != "" {
		t.Errorf("slot of somebody else is %v", slot)
	}
	_, err := b.media.InsertMedia(t.Context(), &mediav1.InsertMediaRequest{Bmc: bmc, Slot: "CD1", ImageUrl: one})
	b.reason("insert", err, errorsv1.Reason_REASON_MEDIA_SLOT_IN_USE)
	_, err = b.media.EjectMedia(t.Context(), &mediav1.EjectMediaRequest{Bmc: bmc, Slot: "CD1"})
	b.reason("eject", err, errorsv1.Reason_REASON_MEDIA_SLOT_IN_USE)
	b.insert("CD2", one)
	b.until("CD2", mediav1.MediaState_MEDIA_STATE_INSERTED)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	for name, test := range map[string]struct {
		bmc       *referencev1.BMCReference
		slot, url string
		want      errorsv1.Reason
	}{
		"no such BMC":   {&referencev1.BMCReference{Namespace: "default", Name: "nobody"}, "CD1", one, errorsv1.Reason_REASON_BMC_NOT_FOUND},
		"no such slot":  {bmc, "CD9", one, errorsv1.Reason_REASON_MEDIA_SLOT_NOT_FOUND},
		"no slot":       {bmc, "", one, errorsv1.Reason_REASON_INVALID_REQUEST},
		"no URL":        {bmc, "CD1", "", errorsv1.Reason_REASON_INVALID_REQUEST},
		"file URL":      {bmc, "CD1", "file:///etc/passwd", errorsv1.Reason_REASON_INVALID_REQUEST},
		"URL w/o host":  {bmc, "CD1", "http://user:secret@/x", errorsv1.Reason_REASON_INVALID_REQUEST},
		"port alone":    {bmc, "CD1", "http://:80/", errorsv1.Reason_REASON_INVALID_REQUEST},
		"port 99999":    {bmc, "CD1", "http://x:99999/", errorsv1.Reason_REASON_INVALID_REQUEST},
		"port 0":        {bmc, "CD1", "http://x:0/", errorsv1.Reason_REASON_INVALID_REQUEST},
		"malformed URL": {bmc, "CD1", "http://user:secret@host:port/%zz", errorsv1.Reason_REASON_INVALID_REQUEST},
	} {
		_, err := b.media.InsertMedia(t.Context(), &mediav1.InsertMediaRequest{Bmc: test.bmc, Slot: test.slot, ImageUrl: test.url})
		b.reason(name, err, test.want)
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error repeats the password: %v", name, err)
		}
	}
	if err := b.simulator.FailNext(machine, simulator.VerbInsert, hypervisor.ErrUnavailable); err != nil {
		t.Fatal(err)
	}
	_, err := b.media.InsertMedia(t.Context(), &mediav1.InsertMediaRequest{Bmc: bmc, Slot: "CD1", ImageUrl: one})
	b.reason("hypervisor unavailable", err, errorsv1.Reason_REASON_HYPERVISOR_UNAVAILABLE)
}

// TestSecretsAreNowhere: the password of a URL or of the credentials is in no
// answer and in no log line.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{})
	if slot := b.insert("CD1", "http://user:hush-url@images.example/one.iso"); slot.GetImageUrl() != one {
		t.Errorf("the slot shows the URL %q", slot.GetImageUrl())
	}
	_, err := b.media.InsertMedia(t.Context(), &mediav1.InsertMediaRequest{
		Bmc: bmc, Slot: "CD1", ImageUrl: two, Credentials: &mediav1.ImageCredentials{Username: "user", Password: "hush-field"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.log.String(), "MEDIA_INSERT CD1") {
		t.Error("the log has no audit line")
	}
	if strings.Contains(b.log.String(), "hush") {
		t.Errorf("the log has a password:\n%s", b.log)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	b := newBed(t, simulator.Spec{NoHotplug: true, RunStrategy: hypervisor.RunStrategyAlways})
	stream, err := b.media.WatchMedia(t.Context(), &mediav1.WatchMediaRequest{Bmc: bmc})
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, is func(*mediav1.MediaSlot) bool) {
		t.Helper()
		for {
			response, err := stream.Recv()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if is(response.GetSlots()[0]) {
				return
			}
		}
	}
	state := func(want mediav1.MediaState) func(*mediav1.MediaSlot) bool {
		return func(slot *mediav1.MediaSlot) bool { return slot.GetState() == want }
	}
	until("empty", state(mediav1.MediaState_MEDIA_STATE_EMPTY))
	b.insert("CD1", one)
	until("importing", state(mediav1.MediaState_MEDIA_STATE_IMPORTING))
	until("inserted at the next start", func(slot *mediav1.MediaSlot) bool {
		return slot.GetState() == mediav1.MediaState_MEDIA_STATE_INSERTED && slot.GetAtNextStart()
	})
	for {
		if err := b.simulator.Restart(t.Context(), machine); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	until("inserted now", func(slot *mediav1.MediaSlot) bool {
		return slot.GetState() == mediav1.MediaState_MEDIA_STATE_INSERTED && !slot.GetAtNextStart()
	})
	if err := b.simulator.DeleteMachine(machine); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	b.reason("watch of a machine that was deleted", err, errorsv1.Reason_REASON_MACHINE_NOT_FOUND)
}
