// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package bmcresource

import (
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/audit"
)

// reasonTrouble is the reason of the events of what failed after it had been
// accepted.
const reasonTrouble = "ActionFailed"

// Events makes Kubernetes Events of what is done to BMCs, for those who look at
// the resource; the audit log has more. An Event is written in the background,
// and may be lost: beyond 25 of one BMC in a row, one every five minutes is
// written, and 1,000 may wait. It implements audit.Sink.
type Events struct {
	uid         func(namespace, name string) types.UID
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	recording   watch.Interface
}

var _ audit.Sink = (*Events)(nil)

// NewEvents makes Events that come from a component. uid tells the UID of a BMC,
// empty when there is none, and answers at once. Run has to be called once: it ends
// the writing.
func NewEvents(config *rest.Config, component string, uid func(namespace, name string) types.UID) (*Events, error) {
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of events: %w", err)
	}
	broadcaster := record.NewBroadcaster()
	// What is told before somebody listens would be lost.
	recording := broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
	return &Events{
		uid:         uid,
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}),
		recording:   recording,
	}, nil
}

// Run waits until the context ends, and ends the writing of Events.
func (e *Events) Run(ctx context.Context) error {
	<-ctx.Done()
	e.recording.Stop()
	e.broadcaster.Shutdown()
	return nil
}

// Audited makes an Event of a call.
func (e *Events) Audited(r audit.Record) {
	kind, outcome := corev1.EventTypeNormal, ""
	if r.Err != nil {
		refused := status.Convert(r.Err)
		kind, outcome = corev1.EventTypeWarning, fmt.Sprintf(", refused: %s: %s", refused.Code(), refused.Message())
	}
	e.event(r.Namespace, r.BMC, kind, reasonOf(r.Action), r.Action+byWhom(r)+outcome)
}

// Trouble makes an Event of something that was accepted and then failed.
func (e *Events) Trouble(namespace, name, action, message string) {
	e.event(namespace, name, corev1.EventTypeWarning, reasonTrouble, action+": "+message)
}

func (e *Events) event(namespace, name, kind, reason, message string) {
	uid := e.uid(namespace, name)
	if uid == "" {
		return
	}
	e.recorder.Event(&corev1.ObjectReference{
		APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineBMC",
		Namespace: namespace, Name: name, UID: uid,
	}, kind, reason, message)
}

// byWhom names who asked, the BMC's user or else the caller itself, and from
// where: without the port, so that Events of the same client are alike.
func byWhom(r audit.Record) string {
	who := r.Caller.User
	if who == "" {
		who = r.Identity
	}
	address := r.Caller.Address
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return fmt.Sprintf(" by %s at %s over %s", who, address, r.Caller.Protocol)
}

// reasonOf makes a reason, in the form of Kubernetes, of an action's first word.
func reasonOf(action string) string {
	word, _, _ := strings.Cut(action, " ")
	var reason strings.Builder
	for part := range strings.SplitSeq(word, "_") {
		if part != "" {
			reason.WriteString(part[:1] + strings.ToLower(part[1:]))
		}
	}
	return reason.String()
}
