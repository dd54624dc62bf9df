// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// exchange is a request at a privilege level and its answer, both as send has
// them.
type exchange struct {
	level   ipmi.Privilege
	request string
	want    string
}

func runExchanges(t *testing.T, exchanges map[string]exchange) {
	t.Helper()
	for name, tc := range exchanges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := newBench().send(t, session(tc.level), tc.request); got != tc.want {
				t.Errorf("%s = %q, want %q", tc.request, got, tc.want)
			}
		})
	}
}

const (
	user     = ipmi.PrivilegeUser
	operator = ipmi.PrivilegeOperator
	admin    = ipmi.PrivilegeAdministrator
)

func TestChannelCommands(t *testing.T) {
	t.Parallel()
	runExchanges(t, map[string]exchange{
		"access, kept":                      {user, "06 41 0e40", "00 2204"},
		"access, present":                   {user, "06 41 0180", "00 2204"},
		"access, neither kept nor present":  {user, "06 41 0100", "cc"},
		"access of another channel":         {user, "06 41 0240", "cc"},
		"access without what":               {user, "06 41 01", "c7"},
		"info":                              {user, "06 42 0e", "00 01040182f21b000000"},
		"info of another channel":           {user, "06 42 02", "cc"},
		"info of the system interface":      {user, "06 42 0f", "cc"},
		"info of nothing":                   {user, "06 42", "c7"},
		"Set Channel Access":                {admin, "06 40 01028404", "c1"},
		"Set User Access":                   {admin, "06 43 910204", "c1"},
		"Set User Name":                     {admin, "06 45 03" + strings.Repeat("61", 16), "c1"},
		"Set User Password":                 {admin, "06 47 0202" + strings.Repeat("61", 16), "c1"},
		"user access, null user":            {operator, "06 44 0e01", "00 0382030f"},
		"user access, administrator":        {operator, "06 44 0e02", "00 03420314"},
		"user access, operator":             {operator, "06 44 0103", "00 03420313"},
		"user access, nobody":               {operator, "06 44 0104", "cc"},
		"user access, number 0":             {operator, "06 44 0100", "cc"},
		"user access on another channel":    {operator, "06 44 0201", "cc"},
		"user access by a reader":           {user, "06 44 0e01", "d4"},
		"user name, null user":              {operator, "06 46 01", "00 " + strings.Repeat("00", 16)},
		"user name, operator":               {operator, "06 46 03", "00 " + hex.EncodeToString([]byte("operator")) + strings.Repeat("00", 8)},
		"user name, nobody":                 {operator, "06 46 3f", "cc"},
		"session, this":                     {operator, "06 3d 00", "00 023f02030311c0000209" + "000000000000" + "8813"},
		"session, first, of IPv6":           {operator, "06 3d 01", "00 013f02000211" + "00000000" + "000000000000" + "a00f"},
		"session, beyond the last":          {operator, "06 3d 03", "00 003f02"},
		"session, by handle":                {operator, "06 3d fe01", "00 013f02000211" + "00000000" + "000000000000" + "a00f"},
		"session, by unknown handle":        {operator, "06 3d fe00", "cb"},
		"session, by id":                    {operator, "06 3d ff04030201", "00 023f02030311c0000209" + "000000000000" + "8813"},
		"session, by unknown id":            {operator, "06 3d ff05030201", "cb"},
		"session, id cut off":               {operator, "06 3d ff0403", "c7"},
		"session, this with too much":       {operator, "06 3d 0000", "c7"},
		"system info, progress":             {user, "06 59 00000000", "00 1100"},
		"system info, revision":             {user, "06 59 80020000", "00 11"},
		"system info, name":                 {user, "06 59 00020000", "00 1100001e" + hex.EncodeToString([]byte("vm-with-a-long"))},
		"system info, name, second block":   {user, "06 59 00020100", "00 1101" + hex.EncodeToString([]byte("-name-of-its-own"))},
		"system info, name, beyond the end": {user, "06 59 00020200", "c9"},
		"system info, operating system":     {user, "06 59 00040000", "00 11000010" + hex.EncodeToString([]byte("Debian GNU/Lin"))},
		"system info, version in UTF-8":     {user, "06 59 00050000", "00 11000102c3a9" + strings.Repeat("00", 12)},
		"system info, firmware version":     {user, "06 59 00010000", "00 1100" + strings.Repeat("00", 16)},
		"system info, OEM parameter":        {user, "06 59 00c00000", "80"},
		"system info, cut off":              {user, "06 59 0002", "c7"},
		"system info, set the name":         {admin, "06 58 0200000461626364", "82"},
		"system info, set what is not":      {admin, "06 58 0700", "80"},
		"system info, set by an operator":   {operator, "06 58 0200", "d4"},
	})
}

func TestLANParameters(t *testing.T) {
	t.Parallel()
	runExchanges(t, map[string]exchange{
		"progress":                     {operator, "0c 02 01000000", "00 1100"},
		"authentication types":         {operator, "0c 02 01010000", "00 1100"},
		"authentication types enabled": {operator, "0c 02 01020000", "00 110000000000"},
		"address":                      {operator, "0c 02 0e030000", "00 11c0000201"},
		"address source":               {operator, "0c 02 01040000", "00 1104"},
		"MAC address":                  {operator, "0c 02 01050000", "00 11020000000001"},
		"subnet mask":                  {operator, "0c 02 01060000", "00 11ffffff00"},
		"IPv4 header":                  {operator, "0c 02 01070000", "80"},
		"gateway":                      {operator, "0c 02 010c0000", "00 1100000000"},
		"gateway's MAC address":        {operator, "0c 02 010d0000", "00 11000000000000"},
		"community":                    {operator, "0c 02 01100000", "00 11" + strings.Repeat("00", 18)},
		"alert destinations":           {operator, "0c 02 01110000", "80"},
		"VLAN":                         {operator, "0c 02 01140000", "00 110000"},
		"VLAN priority":                {operator, "0c 02 01150000", "00 1100"},
		"of no such parameter":         {operator, "0c 02 01190000", "80"},
		"cipher suites, how many":      {operator, "0c 02 01160000", "00 1102"},
		"cipher suites":                {operator, "0c 02 01170000", "00 11001103"},
		"cipher suites, privileges":    {operator, "0c 02 01180000", "00 11004400000000000000"},
		"what comes after":             {operator, "0c 02 01190000", "80"},
		"OEM parameter":                {operator, "0c 02 01c00000", "80"},
		"revision":                     {operator, "0c 02 81030000", "00 11"},
		"another channel":              {operator, "0c 02 02030000", "cc"},
		"cut off":                      {operator, "0c 02 0103", "c7"},
		"by a reader":                  {user, "0c 02 01030000", "d4"},
		"set address":                  {admin, "0c 01 0103c0000202", "82"},
		"set in progress":              {admin, "0c 01 010001", "82"},
		"set what is not":              {admin, "0c 01 011900", "80"},
		"set by an operator":           {operator, "0c 01 0103c0000202", "d4"},
		"set of another channel":       {admin, "0c 01 0203c0000202", "cc"},
		"Suspend BMC ARPs":             {admin, "0c 03 0103", "c1"},
		"statistics":                   {user, "0c 04 0100", "c1"},
	})
}

// Behind a Service, what clients use is the Service's address, of which nothing
// else is known.
func TestLANParameters_behindAService(t *testing.T) {
	t.Parallel()
	b := newBench()
	for address, want := range map[string][3]string{
		"198.51.100.7": {"00 11c6336407", "00 11000000000000", "00 11ffffffff"},
		"2001:db8::7":  {"00 1100000000", "00 11000000000000", "00 1100000000"},
	} {
		b.target.ClientAddress = netip.MustParseAddr(address)
		for i, request := range []string{"0c 02 01030000", "0c 02 01050000", "0c 02 01060000"} {
			if got := b.send(t, session(operator), request); got != want[i] {
				t.Errorf("%s: %s = %q, want %q", address, request, got, want[i])
			}
		}
	}
}
