// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"kubevirtbmc.dev/pkg/grpcstatus"
	"kubevirtbmc.dev/pkg/ipmiuser"
	"kubevirtbmc.dev/pkg/logkey"
	errorsv1 "kubevirtbmc.dev/proto/gen/go/bmc/errors/v1"
	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	statev1 "kubevirtbmc.dev/proto/gen/go/bmc/state/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

// settleTime is how long the answer to a changed account waits for the registry to
// tell of it, so that the next login already meets it.
const settleTime = 5 * time.Second

// Names of account properties.
const (
	propertyUserName       = "UserName"
	propertyPassword       = "Password"
	propertyRoleID         = "RoleId"
	propertyEnabled        = "Enabled"
	propertyLocked         = "Locked"
	propertyPasswordChange = "PasswordChangeRequired"
	propertyAccountTypes   = "AccountTypes"
)

// user is an account as clients see it.
type user struct {
	resource.User
	// fixed: it is the BMC's own, of its Secret, which this service can't change.
	fixed bool
}

// users returns the accounts of a BMC: its own, by which somebody can always log
// in, and those that were created.
func (s *Server) users(ctx context.Context, c *call) ([]user, error) {
	stored, err := s.cfg.Backend.Accounts(ctx, c.endpoint.ref)
	if err != nil {
		return nil, err
	}
	var list []user
	for _, a := range c.endpoint.state.Load().accounts.All() {
		if slices.ContainsFunc(stored, func(s *statev1.StoredAccount) bool { return s.GetUsername() == a.Username }) {
			continue
		}
		list = append(list, user{User: resource.User{
			Name: a.Username, Role: account.RoleName(a.Role), IPMI: a.IPMI, PasswordChangeRequired: a.PasswordChangeRequired,
		}, fixed: true})
	}
	for _, a := range stored {
		list = append(list, storedUser(a))
	}
	return list, nil
}

func storedUser(a *statev1.StoredAccount) user {
	return user{User: resource.User{
		Name: a.GetUsername(), Role: account.RoleName(a.GetRole()), Disabled: a.GetDisabled(),
		PasswordChangeRequired: a.GetPasswordChangeRequired(),
		IPMI:                   slices.Contains(a.GetProtocols(), registryv1.Protocol_PROTOCOL_IPMI),
	}}
}

// user returns the account that the path names.
func (s *Server) user(ctx context.Context, c *call) (user, error) {
	list, err := s.users(ctx, c)
	if err != nil {
		return user{}, err
	}
	for _, u := range list {
		if u.Name == c.r.PathValue("id") {
			return u, nil
		}
	}
	return user{}, missing(c)
}

// mayRead tells whether a caller may read an account: one's own, or with the
// privilege, others' (DMTF's privilege registry, ManagerAccount).
func mayRead(c *call, username string) bool {
	privileges := account.Privileges(c.account.Role)
	return privileges&(account.ConfigureManager|account.ConfigureUsers) != 0 ||
		privileges.Has(account.ConfigureSelf) && username == c.account.Username
}

// leadsToPassword tells whether a request is one that a user may make whose password
// has to be changed (DSP0266, "Password change required"): to read the own account,
// to change its password, and to end the own session.
func (s *Server) leadsToPassword(c *call) bool {
	own := c.r.PathValue("id") == c.account.Username
	switch c.route {
	case resource.AccountsURI + "/{id}":
		return own && c.r.Method != http.MethodDelete
	case resource.SessionsURI + "/{id}":
		return c.r.PathValue("id") == c.session.ID
	}
	return false
}

func passwordChangeRequired(who account.Account) *message.Error {
	return message.Errorf(http.StatusForbidden, message.PasswordChangeRequired, resource.MemberURI(resource.AccountsURI, who.Username))
}

// getAccounts lists the accounts that the caller may read.
func (s *Server) getAccounts(ctx context.Context, c *call) (reply, error) {
	list, err := s.users(ctx, c)
	if err != nil {
		return reply{}, err
	}
	var members []string
	for _, u := range list {
		if mayRead(c, u.Name) {
			members = append(members, resource.MemberURI(resource.AccountsURI, u.Name))
		}
	}
	return ok(resource.NewCollection(resource.AccountsURI, "#ManagerAccountCollection.ManagerAccountCollection", "Accounts Collection", members...))
}

// getAccount answers alike for an account that is not there and one that the
// caller may not read, or names could be guessed.
func (s *Server) getAccount(ctx context.Context, c *call) (reply, error) {
	if !mayRead(c, c.r.PathValue("id")) {
		return reply{}, message.Errorf(http.StatusForbidden, message.InsufficientPrivilege)
	}
	u, err := s.user(ctx, c)
	if err != nil {
		return reply{}, err
	}
	if u.fixed {
		fixedAccount(c)
	}
	return ok(resource.NewManagerAccount(u.User))
}

// fixedAccount says in the Allow header that the BMC's own account can only be read.
func fixedAccount(c *call) {
	c.w.Header().Set("Allow", allowed(map[string]operation{get: {}}))
}

// accountChange is what a request wants of an account; nil for what it does not name.
type accountChange struct {
	password       *string
	role           *registryv1.Role
	enabled        *bool
	unlock         bool
	passwordChange *bool
}

func (a accountChange) empty() bool {
	return a.password == nil && a.role == nil && a.enabled == nil && !a.unlock && a.passwordChange == nil
}

// readAccount reads the properties that accounts are created with and changed by.
func readAccount(c *change) (a accountChange) {
	if a.password = c.secret(propertyPassword); a.password != nil {
		if n := utf8.RuneCountInString(*a.password); n < resource.MinPasswordLength || n > resource.MaxPasswordLength {
			c.reject(propertyPassword, message.PropertyValueFormatError, hidden, propertyPassword)
		}
	}
	if name := c.text(propertyRoleID); name != nil {
		if role, ok := account.RoleOf(*name); ok {
			a.role = &role
		} else {
			c.reject(propertyRoleID, message.PropertyValueNotInList, shorten(*name), propertyRoleID)
		}
	}
	a.enabled = c.boolean(propertyEnabled)
	a.passwordChange = c.boolean(propertyPasswordChange)
	if locked := c.boolean(propertyLocked); locked != nil {
		if a.unlock = !*locked; *locked { // Accounts are locked by failed logins alone.
			c.reject(propertyLocked, message.PropertyValueNotInList, "true", propertyLocked)
		}
	}
	return a
}

// createAccount adds an account.
func (s *Server) createAccount(ctx context.Context, c *call) (reply, error) {
	body, refusal := readChange(c)
	if refusal != nil {
		return reply{}, refusal
	}
	name := body.text(propertyUserName)
	wanted := readAccount(body)
	for _, required := range [...]string{propertyUserName, propertyPassword, propertyRoleID} {
		if !body.has(required) {
			body.reject(required, message.PropertyMissing, required)
		}
	}
	if name != nil && (*name == "" || utf8.RuneCountInString(*name) > resource.MaxUsernameLength) {
		body.reject(propertyUserName, message.PropertyValueFormatError, shorten(*name), propertyUserName)
	}
	types := body.texts(propertyAccountTypes)
	body.rest(servedProperties(resource.NewManagerAccount(resource.User{})))
	if refusal := body.refusal(true); refusal != nil {
		return reply{}, refusal
	}
	request := &statev1.CreateAccountRequest{
		Bmc: c.endpoint.ref, Username: *name, Password: *wanted.password, Role: *wanted.role,
		Disabled:               wanted.enabled != nil && !*wanted.enabled,
		PasswordChangeRequired: wanted.passwordChange != nil && *wanted.passwordChange,
	}
	if refusal := checkTypes(types, request); refusal != nil {
		return reply{}, refusal
	}
	created, err := s.cfg.Backend.CreateAccount(ctx, request)
	switch grpcstatus.ReasonOf(err) {
	case errorsv1.Reason_REASON_ALREADY_EXISTS:
		return reply{}, &message.Error{Status: http.StatusConflict, Messages: []message.Message{
			message.New(message.ResourceAlreadyExists, "ManagerAccount", propertyUserName, *name).About("#/" + propertyUserName),
		}}
	case errorsv1.Reason_REASON_LIMIT_REACHED:
		return reply{}, message.Errorf(http.StatusBadRequest, message.CreateLimitReachedForResource)
	}
	if err != nil {
		return reply{}, err
	}
	s.logAccount(ctx, c, "account created", *name)
	s.settle(ctx, c, func(a *account.Set) bool {
		_, ok := a.Check(*name, *wanted.password)
		return ok || created.GetDisabled()
	})
	answer := resource.NewManagerAccount(storedUser(created).User)
	if len(body.notes) > 0 {
		answer.Messages = body.notes
	}
	resource.SetETag(answer)
	return reply{status: http.StatusCreated, body: answer, location: answer.ODataID}, nil
}

// checkTypes refuses account types other than those that an account has by its name
// and password: whom IPMI can carry, may use it.
func checkTypes(types []string, request *statev1.CreateAccountRequest) *message.Error {
	if types == nil {
		return nil
	}
	has := resource.AccountTypes(ipmiuser.Fits(request.GetUsername(), request.GetPassword()))
	slices.Sort(has)
	slices.Sort(types)
	if slices.Equal(has, slices.Compact(types)) {
		return nil
	}
	return &message.Error{Status: http.StatusBadRequest, Messages: []message.Message{
		message.New(message.PropertyValueConflict, propertyAccountTypes, propertyPassword).About("#/" + propertyAccountTypes),
	}, Text: "An account of this name and password may use " + strings.Join(has, " and ") + "."}
}

// patchAccount changes an account: one's own password with ConfigureSelf, all else
// with ConfigureUsers.
func (s *Server) patchAccount(ctx context.Context, c *call) (reply, error) {
	id := c.r.PathValue("id")
	if !mayRead(c, id) {
		return reply{}, message.Errorf(http.StatusForbidden, message.InsufficientPrivilege)
	}
	body, refusal := readChange(c)
	if refusal != nil {
		return reply{}, refusal
	}
	u, err := s.user(ctx, c)
	if err != nil {
		return reply{}, err
	}
	now := resource.NewManagerAccount(u.User)
	if refusal := checkMatch(c, now); refusal != nil {
		return reply{}, refusal
	}
	for name := range body.body {
		restricted := name != propertyPassword && !strings.Contains(name, "@")
		if restricted && (!account.Privileges(c.account.Role).Has(account.ConfigureUsers) || c.account.PasswordChangeRequired) {
			return reply{}, message.Errorf(http.StatusForbidden, message.InsufficientPrivilege)
		}
	}
	wanted := accountChange{}
	if u.fixed {
		fixedAccount(c)
	} else {
		wanted = readAccount(body)
	}
	body.rest(servedProperties(now))
	if refusal := body.refusal(!wanted.empty()); refusal != nil {
		if u.fixed {
			refusal.Text = "This is the BMC's own account. It is changed in the Secret that its VirtualMachineBMC names."
		}
		return reply{}, refusal
	}
	request := &statev1.UpdateAccountRequest{
		Bmc: c.endpoint.ref, Username: u.Name, Password: wanted.password, Role: wanted.role, PasswordChangeRequired: wanted.passwordChange,
	}
	if wanted.enabled != nil {
		disabled := !*wanted.enabled
		request.Disabled = &disabled
	}
	changed, err := s.cfg.Backend.UpdateAccount(ctx, request)
	if err != nil {
		return reply{}, err
	}
	if wanted.unlock || wanted.password != nil {
		s.backoff.ForgetUser(c.endpoint, u.Name)
	}
	s.logAccount(ctx, c, "account changed", u.Name)
	s.settle(ctx, c, func(a *account.Set) bool {
		now, there := a.Find(u.Name)
		if changed.GetDisabled() || !there {
			return changed.GetDisabled() != there
		}
		right := true
		if wanted.password != nil {
			_, right = a.Check(u.Name, *wanted.password)
		}
		return right && now.Role == changed.GetRole() && now.PasswordChangeRequired == changed.GetPasswordChangeRequired()
	})
	answer := resource.NewManagerAccount(storedUser(changed).User)
	if len(body.notes) > 0 {
		answer.Messages = body.notes
	}
	return ok(answer)
}

// deleteAccount removes an account that was created.
func (s *Server) deleteAccount(ctx context.Context, c *call) (reply, error) {
	u, err := s.user(ctx, c)
	if err != nil {
		return reply{}, err
	}
	if refusal := checkMatch(c, resource.NewManagerAccount(u.User)); refusal != nil {
		return reply{}, refusal
	}
	if u.fixed {
		fixedAccount(c)
		return reply{}, message.Errorf(http.StatusMethodNotAllowed, message.ResourceCannotBeDeleted)
	}
	if err := s.cfg.Backend.DeleteAccount(ctx, c.endpoint.ref, u.Name); err != nil {
		return reply{}, err
	}
	s.logAccount(ctx, c, "account deleted", u.Name)
	s.settle(ctx, c, func(a *account.Set) bool {
		_, there := a.Find(u.Name)
		return !there
	})
	return reply{status: http.StatusNoContent}, nil
}

// settle waits until the registry tells of a changed account.
func (s *Server) settle(ctx context.Context, c *call, wanted func(*account.Set) bool) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	c.endpoint.await(ctx, wanted)
}

func (s *Server) logAccount(ctx context.Context, c *call, what, username string) {
	s.cfg.Log.InfoContext(ctx, what, logkey.Request, c.id,
		logkey.Namespace, c.endpoint.ref.GetNamespace(), logkey.BMC, c.endpoint.ref.GetName(),
		logkey.User, c.account.Username, "account", username)
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
