// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"

	"kubevirtbmc.dev/cmd/kubevirtbmc/internal/config"
)

// grpcurl is run from its module where it is not installed.
const grpcurl = "go run github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"

// banner says what runs where, with commands that work as they stand. Secrets
// that were given are not shown: the commands take them from the environment.
func (o Options) banner(file *config.File, credentials config.Credentials, token string) string {
	const most = 5 // BMCs to list.
	first, last := file.BMCs[0], file.BMCs[len(file.BMCs)-1]
	username, password := shellQuote(credentials.Username), shellQuote(credentials.Password)
	var b strings.Builder
	fmt.Fprintf(&b, "\nKubeVirtBMC standalone, BMCs: %d\n", len(file.BMCs))
	for i, bmc := range file.BMCs {
		if i == most && len(file.BMCs) > most+1 {
			fmt.Fprintf(&b, "  ... each of the others one port further, to %s/%s\n", last.Namespace, last.Name)
			break
		}
		fmt.Fprintf(&b, "  %s/%s: IPMI udp %s, Redfish https://%s\n", bmc.Namespace, bmc.Name, o.address(o.Ports.IPMI+i), o.address(o.Ports.Redfish+i))
	}
	fmt.Fprintf(&b, "  API: https://%s (gRPC and REST)\n", o.address(o.APIPort))
	if credentials.Generated {
		fmt.Fprintf(&b, "  user %s, password %s (generated)\n", credentials.Username, credentials.Password)
	} else {
		password = `"$BMC_PASSWORD"`
		fmt.Fprintf(&b, "  user %s, password as you gave it: set BMC_PASSWORD to it where you paste the commands below\n", credentials.Username)
	}
	if first.Username != "" || first.Password != "" {
		username, password = `"$BMC_USERNAME"`, `"$BMC_PASSWORD"` //nolint:gosec // Names of variables.
		fmt.Fprintf(&b, "  the first BMC has credentials of its own: set BMC_USERNAME and BMC_PASSWORD for the commands below\n")
	}
	if o.Token == "" {
		fmt.Fprintf(&b, "  API token %s (generated)\n", token)
	} else {
		token = "$KUBEVIRTBMC_TOKEN" //nolint:gosec // Name of a variable.
		fmt.Fprintf(&b, "  API token as you gave it: set KUBEVIRTBMC_TOKEN to it where you paste the commands below\n")
	}

	curlTrust, grpcTrust := "-k", "-insecure"
	if o.CAOut != "" {
		curlTrust, grpcTrust = "--cacert "+shellQuote(o.CAOut), "-cacert "+shellQuote(o.CAOut)
	}
	ipmitool := fmt.Sprintf("ipmitool -I lanplus -H %s -p %d -U %s -P %s", o.host(), o.Ports.IPMI, username, password)
	redfish := fmt.Sprintf(`curl -sS -w '%%{http_code}\n' %s -u %s:%s`, curlTrust, username, password)
	system := fmt.Sprintf("https://%s/redfish/v1/Systems/1", o.address(o.Ports.Redfish))
	rest := fmt.Sprintf(`curl -sS -w '\n' %s -H "Authorization: Bearer %s"`, curlTrust, token)
	api := fmt.Sprintf("https://%s/v1/namespaces/%s/bmcs/%s", o.address(o.APIPort), first.Namespace, first.Name)
	call := "grpcurl"
	if _, err := exec.LookPath(call); err != nil {
		call = grpcurl
		if _, err := os.Stat("bin/grpcurl"); err == nil { // `make test` has built it.
			call = "bin/grpcurl"
		}
	}
	fmt.Fprintf(&b, "\nTry %s/%s:\n", first.Namespace, first.Name)
	for _, line := range []string{
		ipmitool + " chassis power status",
		ipmitool + " chassis power on",
		ipmitool + " chassis bootdev pxe",
		redfish + " " + system,
		redfish + ` -H 'Content-Type: application/json' -d '{"ResetType":"ForceRestart"}' ` + system + "/Actions/ComputerSystem.Reset",
		redfish + ` -X PATCH -H 'Content-Type: application/json' -d '{"Boot":{"BootSourceOverrideTarget":"Hdd","BootSourceOverrideEnabled":"Once"}}' ` + system,
		rest + " " + api + "/power",
		rest + ` -d '{"action":"POWER_ACTION_FORCE_OFF","wait":"30s"}' ` + api + "/power",
		fmt.Sprintf(`%s %s -H "authorization: Bearer %s" -d '{"bmc":{"namespace":%q,"name":%q}}' %s bmc.power.v1.PowerService/GetPower`,
			call, grpcTrust, token, first.Namespace, first.Name, o.address(o.APIPort)),
	} {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	fmt.Fprint(&b, "\nCtrl-C ends it.\n")
	return b.String()
}

// host returns an address that clients on this machine can use.
func (o Options) host() string {
	if ip := net.ParseIP(o.Listen); o.Listen == "" || ip != nil && ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return o.Listen
}

func (o Options) address(port int) string { return net.JoinHostPort(o.host(), fmt.Sprint(port)) }

// shellQuote returns a word that a POSIX shell reads as s.
func shellQuote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+="
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
