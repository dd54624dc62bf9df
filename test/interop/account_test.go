// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"testing"

	"kubevirtbmc.dev/test/launch"
)

// An account that is created over Redfish counts over IPMI too, from the moment that
// it is there and until it is not.
func TestAccounts_overBothProtocols(t *testing.T) {
	t.Parallel()
	s := launch.StartStandalone(t, 1)
	base := "https://" + s.Redfish(0) + "/redfish/v1"
	as := func(login string) client {
		return need(t, "curl", "-sS", "--cacert", s.CAFile, "-w", "\n%{http_code}", "-H", "Content-Type: application/json", "-u", login)
	}
	tool := func(password string) client {
		return need(t, "ipmitool", "-I", "lanplus", "-H", "127.0.0.1", "-p", s.IPMIPort(0), "-U", "web", "-P", password, "-L", "OPERATOR", "-R", "1")
	}
	admin := as(s.Username + ":" + s.Password)
	accounts := base + "/AccountService/Accounts"
	admin.want("\n201", "-d", `{"UserName":"web","Password":"first-password","RoleId":"Operator"}`, accounts)
	as("web:first-password").want("\n200", base+"/Systems/1")
	eventually(t, "the account over IPMI", func() bool { return tool("first-password").run("chassis", "power", "status").exit == 0 })
	as("web:first-password").want("\n200", "-X", "PATCH", "-d", `{"Password":"second-password"}`, accounts+"/web")
	as("web:first-password").want("\n401", base+"/Systems/1")
	eventually(t, "the new password over IPMI", func() bool { return tool("second-password").run("chassis", "power", "status").exit == 0 })
	admin.want("\n200", "-X", "PATCH", "-d", `{"PasswordChangeRequired":true}`, accounts+"/web")
	as("web:second-password").want("\n403", base+"/Systems/1")
	eventually(t, "IPMI without the account", func() bool { return tool("second-password").run("chassis", "power", "status").exit != 0 })
	admin.want("\n204", "-X", "DELETE", accounts+"/web")
	as("web:second-password").want("\n401", base+"/Systems/1")
}
