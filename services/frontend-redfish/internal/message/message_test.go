// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package message

import (
	"encoding/json"
	"os"
	"testing"
)

const registryFile = "../../../../../shared/redfish/registries/Base.1.22.1.json"

func TestDefinitions_matchTheBaseRegistry(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(registryFile)
	if err != nil {
		t.Skipf("the DMTF's Base registry is not at %s", registryFile)
	}
	var registry struct {
		RegistryPrefix, RegistryVersion string
		Messages                        map[Key]struct {
			Message, MessageSeverity, Resolution string
			NumberOfArgs                         int
		}
	}
	if err := json.Unmarshal(raw, &registry); err != nil {
		t.Fatal(err)
	}
	if registry.RegistryPrefix != Registry || registry.RegistryVersion != RegistryVersion {
		t.Errorf("registry is %s %s, want %s %s", registry.RegistryPrefix, registry.RegistryVersion, Registry, RegistryVersion)
	}
	for key, got := range definitions {
		want, ok := registry.Messages[key]
		if !ok {
			t.Errorf("%s is not in the registry", key)
			continue
		}
		if got != (definition{want.Message, Severity(want.MessageSeverity), want.NumberOfArgs, want.Resolution}) {
			t.Errorf("%s is %+v, want %+v", key, got, want)
		}
	}
}

func TestNew_fillsArguments(t *testing.T) {
	t.Parallel()
	m := New(PropertyValueNotInList, "100%2", "Boot")
	if want := "The value '100%2' for the property Boot is not in the list of acceptable values."; m.Message != want {
		t.Errorf("Message = %q, want %q", m.Message, want)
	}
	if want := "Base.1.22.PropertyValueNotInList"; m.MessageID != want {
		t.Errorf("MessageID = %q, want %q", m.MessageID, want)
	}
	if got := len(New(PropertyUnknown).MessageArgs); got != 1 {
		t.Errorf("a message without its argument has %d, want 1", got)
	}
	if got := New("Nonsense").MessageID; got != "Base.1.22.GeneralError" {
		t.Errorf("an unknown key gives %q", got)
	}
}

func TestError_Body(t *testing.T) {
	t.Parallel()
	one := Errorf(400, PropertyMissing, "UserName")
	if got := one.Body().Error.Code; got != "Base.1.22.PropertyMissing" {
		t.Errorf("code of one message = %q", got)
	}
	two := &Error{Status: 400, Messages: []Message{New(PropertyMissing, "a"), New(PropertyUnknown, "b")}}
	if got := two.Body().Error.Code; got != "Base.1.22.GeneralError" {
		t.Errorf("code of two messages = %q", got)
	}
	if got := len((&Error{Status: 500}).Body().Error.ExtendedInfo); got != 1 {
		t.Errorf("an empty error has %d messages, want 1", got)
	}
	if got := (&Error{Status: 409, Text: "it is off"}).Body().Error.Message; got != "it is off" {
		t.Errorf("text = %q", got)
	}
}
