// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"testing"

	"kubevirtbmc.dev/services/controller/internal/webhook"
)

func TestTarget_comesBehindKubeVirt(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		webhook.DefaultName("default"): true, webhook.DefaultName("0"): true, "virtbmc": true, "zzz": true,
		"": false, "virt-api-mutator": false, "kubevirtbmc-mutating-webhook-configuration": false, "aaa": false,
	} {
		target := webhook.Target{Name: name}
		if err := target.Validate(); (err == nil) != want {
			t.Errorf("name %q: %v", name, err)
		}
	}
}
