// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"

	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

// mayRead tells whether a caller may read an account: one's own, or with the
// privilege, others' (DMTF's privilege registry, ManagerAccount).
func mayRead(c *call, username string) bool {
	privileges := account.Privileges(c.account.Role)
	return privileges&(account.ConfigureManager|account.ConfigureUsers) != 0 ||
		privileges.Has(account.ConfigureSelf) && username == c.account.Username
}

// getAccounts lists the accounts that the caller may read.
func (s *Server) getAccounts(_ context.Context, c *call) (reply, error) {
	var members []string
	for _, a := range c.endpoint.state.Load().accounts.All() {
		if mayRead(c, a.Username) {
			members = append(members, resource.MemberURI(resource.AccountsURI, a.Username))
		}
	}
	return ok(resource.NewCollection(resource.AccountsURI, "#ManagerAccountCollection.ManagerAccountCollection", "Accounts Collection", members...))
}

// getAccount answers alike for an account that is not there and one that the
// caller may not read, or names could be guessed.
func (s *Server) getAccount(_ context.Context, c *call) (reply, error) {
	id := c.r.PathValue("id")
	if !mayRead(c, id) {
		return reply{}, message.Errorf(http.StatusForbidden, message.InsufficientPrivilege)
	}
	for _, a := range c.endpoint.state.Load().accounts.All() {
		if a.Username == id {
			return ok(resource.NewManagerAccount(a.Username, account.RoleName(a.Role), a.IPMI))
		}
	}
	return reply{}, missing(c)
}

func roles() []*resource.Role {
	var list []*resource.Role
	for _, role := range account.Roles() {
		list = append(list, resource.NewRole(account.RoleName(role), account.Privileges(role).Names()))
	}
	return list
}

func getRoles(context.Context, *call) (reply, error) {
	return allOf(resource.RolesURI, "Role", roles())
}

func getRole(_ context.Context, c *call) (reply, error) { return oneOf(c, roles()) }
