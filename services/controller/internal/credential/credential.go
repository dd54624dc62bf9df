// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package credential reads the accounts of a BMC from its Secret, and says what
// is wrong with them.
package credential

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"kubevirtbmc.dev/api/v1beta1"
	"kubevirtbmc.dev/pkg/ipmiuser"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
)

// What IPMI 2.0 carries of Kg, in bytes (section 13.31), and what is taken for a name
// or password by Redfish.
const (
	maxKg              = 20
	maxRedfishUsername = 256
	maxRedfishPassword = 1024
)

// Credentials are the accounts of a Secret.
type Credentials struct {
	// Redfish is the account over HTTP; nil when there is none.
	Redfish *registryv1.Account
	// IPMI is the account over IPMI; nil when IPMI can't carry it.
	IPMI *registryv1.Account
	// Kg is the BMC key (IPMI 2.0 section 13.31); empty: none.
	Kg []byte
	// RedfishProblem and IPMIProblem are what is wrong with it, for people; empty:
	// nothing is. Neither has a secret in it.
	RedfishProblem, IPMIProblem string
}

// Problem is what is wrong for a BMC, with IPMI or without; empty: nothing is.
func (c *Credentials) Problem(ipmi bool) string {
	var list []string
	if c.RedfishProblem != "" {
		list = append(list, c.RedfishProblem)
	}
	// What is wrong for both is said once.
	if ipmi && c.IPMIProblem != "" && c.IPMIProblem != c.RedfishProblem {
		list = append(list, c.IPMIProblem)
	}
	return strings.Join(list, "; ")
}

// Parse reads a Secret's data.
func Parse(data map[string][]byte) Credentials {
	var c Credentials
	username, password := data[v1beta1.SecretKeyUsername], data[v1beta1.SecretKeyPassword]
	c.RedfishProblem = firstProblem(
		check(v1beta1.SecretKeyUsername, username, maxRedfishUsername),
		check(v1beta1.SecretKeyPassword, password, maxRedfishPassword),
	)
	if c.RedfishProblem == "" && bytes.ContainsRune(username, ':') {
		c.RedfishProblem = fmt.Sprintf("key %s has a colon, which HTTP can't carry (RFC 7617 section 2)", v1beta1.SecretKeyUsername)
	}
	if c.RedfishProblem == "" {
		c.Redfish = account(username, password, registryv1.Protocol_PROTOCOL_REDFISH)
	}
	usernameKey, passwordKey := v1beta1.SecretKeyUsername, v1beta1.SecretKeyPassword
	if own, ok := data[v1beta1.SecretKeyIPMIUsername]; ok {
		usernameKey, username = v1beta1.SecretKeyIPMIUsername, own
	}
	if own, ok := data[v1beta1.SecretKeyIPMIPassword]; ok {
		passwordKey, password = v1beta1.SecretKeyIPMIPassword, own
	}
	kg := data[v1beta1.SecretKeyIPMIKg]
	c.IPMIProblem = firstProblem(
		checkIPMI(usernameKey, username, ipmiuser.MaxName, v1beta1.SecretKeyIPMIUsername),
		checkIPMI(passwordKey, password, ipmiuser.MaxPassword, v1beta1.SecretKeyIPMIPassword),
	)
	if c.IPMIProblem == "" && len(kg) > maxKg {
		c.IPMIProblem = fmt.Sprintf("key %s has %d bytes, IPMI carries %d", v1beta1.SecretKeyIPMIKg, len(kg), maxKg)
	}
	if c.IPMIProblem == "" {
		c.IPMI, c.Kg = account(username, password, registryv1.Protocol_PROTOCOL_IPMI), kg
	}
	return c
}

func account(username, password []byte, protocol registryv1.Protocol) *registryv1.Account {
	return &registryv1.Account{
		Username: string(username), Password: string(password), Role: registryv1.Role_ROLE_ADMINISTRATOR,
		Protocols: []registryv1.Protocol{protocol},
	}
}

func check(key string, value []byte, most int) string {
	switch {
	case len(value) == 0:
		return fmt.Sprintf("key %s is missing or empty", key)
	case len(value) > most:
		return fmt.Sprintf("key %s has %d bytes, %d are allowed", key, len(value), most)
	case bytes.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Sprintf("key %s has a control character, as the end of a line", key)
	case !utf8.Valid(value):
		return fmt.Sprintf("key %s is not UTF-8", key)
	}
	return ""
}

// checkIPMI is check for IPMI, which carries less.
func checkIPMI(key string, value []byte, most int, own string) string {
	if problem := check(key, value, maxRedfishPassword); problem != "" || len(value) <= most {
		return problem
	}
	problem := fmt.Sprintf("key %s has %d bytes, IPMI carries %d", key, len(value), most)
	if key != own {
		problem += ": add a key " + own
	}
	return problem
}

func firstProblem(problems ...string) string {
	for _, problem := range problems {
		if problem != "" {
			return problem
		}
	}
	return ""
}

// Accounts are those that may log in to a BMC that is served over Redfish, over
// IPMI or both: the Secret's, and others unless the Secret has one of the same
// name.
func (c *Credentials) Accounts(redfish, ipmi bool, others []*registryv1.Account) []*registryv1.Account {
	var list []*registryv1.Account
	if redfish && c.Redfish != nil {
		list = append(list, c.Redfish)
	}
	if ipmi && c.IPMI != nil {
		list = append(list, c.IPMI)
	}
	for _, other := range others {
		if c.Redfish.GetUsername() != other.GetUsername() && c.IPMI.GetUsername() != other.GetUsername() {
			list = append(list, other)
		}
	}
	return list
}
