// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package grpcclient

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/balancer/ringhash"
	"google.golang.org/grpc/metadata"

	bootv1 "kubevirtbmc.dev/proto/gen/go/bmc/boot/v1"
	inventoryv1 "kubevirtbmc.dev/proto/gen/go/bmc/inventory/v1"
	mediav1 "kubevirtbmc.dev/proto/gen/go/bmc/media/v1"
	powerv1 "kubevirtbmc.dev/proto/gen/go/bmc/power/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
)

// affinityKey is the metadata whose hash chooses the replica (gRFC A76).
const affinityKey = "x-bmc"

// reads are the methods that are called again when a replica is lost under them.
var reads = []string{
	powerv1.PowerService_GetPower_FullMethodName,
	bootv1.BootService_GetBoot_FullMethodName,
	inventoryv1.InventoryService_GetInventory_FullMethodName,
	mediav1.MediaService_ListMedia_FullMethodName,
	statev1.StateService_ListEvents_FullMethodName,
	statev1.StateService_ListAccounts_FullMethodName,
	statev1.StateService_ListSubscriptions_FullMethodName,
}

// connecting bounds how long calls wait for a replica that does not answer, and
// how long one is left out that has come back.
var connecting = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 2 * time.Second,
}

// serviceConfig chooses replicas by BMC and sends reads again.
func serviceConfig() string {
	type name struct {
		Service string `json:"service"`
		Method  string `json:"method"`
	}
	names := make([]name, len(reads))
	for i, method := range reads {
		names[i].Service, names[i].Method, _ = strings.Cut(strings.TrimPrefix(method, "/"), "/")
	}
	config, err := json.Marshal(map[string]any{
		"loadBalancingConfig": []any{map[string]any{ringhash.Name: map[string]any{"requestHashHeader": affinityKey}}},
		"methodConfig": []any{map[string]any{
			"name": names,
			"retryPolicy": map[string]any{
				"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "0.5s", "backoffMultiplier": 2,
				"retryableStatusCodes": []string{"UNAVAILABLE"},
			},
		}},
	})
	if err != nil {
		panic(err) // Of constants alone.
	}
	return string(config)
}

// withBMC returns the context of a call about the BMC that its message names;
// calls that name none go to any replica.
func withBMC(ctx context.Context, message any) context.Context {
	bmc := named(message)
	if bmc == nil {
		return ctx
	}
	// Escaped, for metadata is ASCII, and it is the server that checks names.
	return metadata.AppendToOutgoingContext(ctx, affinityKey, url.PathEscape(bmc.GetNamespace())+"/"+url.PathEscape(bmc.GetName()))
}
