// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

const (
	maxDestination = 2048
	maxContext     = 256
	policyPrefix   = "DELIVERY_RETRY_POLICY_"
	// keySubscriptions is the key of the Secret that has them.
	keySubscriptions = "subscriptions"
)

// subscription is a line of the Secret.
type subscription struct {
	ID                   string   `json:"id"`
	Destination          string   `json:"destination"`
	Context              string   `json:"context,omitempty"`
	Kinds                []string `json:"kinds,omitempty"`
	RegistryPrefixes     []string `json:"registryPrefixes,omitempty"`
	ResourceTypes        []string `json:"resourceTypes,omitempty"`
	MessageIDs           []string `json:"messageIds,omitempty"`
	OriginResources      []string `json:"originResources,omitempty"`
	SubordinateResources bool     `json:"subordinateResources,omitempty"`
	Headers              []header `json:"headers,omitempty"`
	RetryPolicy          string   `json:"retryPolicy,omitempty"`
	VerifyCertificate    bool     `json:"verifyCertificate,omitempty"`
	Owner                string   `json:"owner,omitempty"`
}

// header is an HTTP header of a subscription.
type header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// ParseSubscriptions reads the subscriptions of a Secret, and returns lines that are none.
func ParseSubscriptions(data map[string][]byte) (list []*statev1.Subscription, unreadable []string) {
	known := map[string]bool{}
	for line := range bytes.Lines(data[keySubscriptions]) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		one, err := parseSubscription(line)
		if err != nil || known[one.GetId()] {
			unreadable = append(unreadable, strings.ToValidUTF8(string(line), "?"))
			continue
		}
		known[one.GetId()] = true
		list = append(list, one)
	}
	return list, unreadable
}

func parseSubscription(line []byte) (*statev1.Subscription, error) {
	var s subscription
	if err := json.Unmarshal(line, &s); err != nil {
		return nil, err
	}
	if s.ID == "" || len(s.ID) > maxEventID || s.Destination == "" || len(s.Destination) > 4*maxDestination || len(s.Context) > 4*maxContext {
		return nil, errors.New("parse event subscription: a field is missing or too long")
	}
	one := &statev1.Subscription{
		Id: s.ID, Destination: s.Destination, Context: s.Context,
		RegistryPrefixes: s.RegistryPrefixes, ResourceTypes: s.ResourceTypes, MessageIds: s.MessageIDs,
		OriginResources: s.OriginResources, SubordinateResources: s.SubordinateResources,
		// A policy of a newer controller is none that an older one knows.
		RetryPolicy:       statev1.DeliveryRetryPolicy(statev1.DeliveryRetryPolicy_value[policyPrefix+s.RetryPolicy]),
		VerifyCertificate: s.VerifyCertificate, Owner: s.Owner,
	}
	for _, h := range s.Headers {
		one.HttpHeaders = append(one.HttpHeaders, &statev1.HTTPHeader{Name: h.Name, Value: h.Value})
	}
	for _, name := range s.Kinds {
		kind := statev1.EventKind(statev1.EventKind_value[kindPrefix+name])
		if kind == 0 {
			return nil, fmt.Errorf("parse event subscription: unknown kind %q", name)
		}
		one.Kinds = append(one.Kinds, kind)
	}
	return one, nil
}

// WriteSubscriptions puts subscriptions into the Secret.
func WriteSubscriptions(data map[string][]byte, list []*statev1.Subscription) error {
	var b bytes.Buffer
	for _, one := range list {
		s := subscription{
			ID: one.GetId(), Destination: one.GetDestination(), Context: one.GetContext(),
			RegistryPrefixes: one.GetRegistryPrefixes(), ResourceTypes: one.GetResourceTypes(), MessageIDs: one.GetMessageIds(),
			OriginResources: one.GetOriginResources(), SubordinateResources: one.GetSubordinateResources(),
			VerifyCertificate: one.GetVerifyCertificate(), Owner: one.GetOwner(),
		}
		if policy := one.GetRetryPolicy(); policy != statev1.DeliveryRetryPolicy_DELIVERY_RETRY_POLICY_UNSPECIFIED {
			s.RetryPolicy = strings.TrimPrefix(policy.String(), policyPrefix)
		}
		for _, h := range one.GetHttpHeaders() {
			s.Headers = append(s.Headers, header{h.GetName(), h.GetValue()})
		}
		for _, kind := range one.GetKinds() {
			s.Kinds = append(s.Kinds, strings.TrimPrefix(kind.String(), kindPrefix))
		}
		if err := appendLine(&b, s); err != nil {
			return fmt.Errorf("write event subscription: %w", err)
		}
	}
	data[keySubscriptions] = b.Bytes()
	return nil
}

// NewID returns a random id.
func NewID() string { return strings.ToLower(rand.Text()) }
