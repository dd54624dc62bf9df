// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import "time"

// AccountService tells of who may log in.
type AccountService struct {
	Header
	ServiceEnabled        bool     `json:"ServiceEnabled"`
	LocalAccountAuth      string   `json:"LocalAccountAuth"`
	HTTPBasicAuth         string   `json:"HTTPBasicAuth"`
	SupportedAccountTypes []string `json:"SupportedAccountTypes"`
	MinPasswordLength     int      `json:"MinPasswordLength"`
	MaxPasswordLength     int      `json:"MaxPasswordLength"`
	// LockoutThreshold is how many failed logins are free; LockoutDuration, in
	// seconds, is how long the next has to wait at most.
	LockoutThreshold int     `json:"AccountLockoutThreshold"`
	LockoutDuration  int     `json:"AccountLockoutDuration"`
	Status           *Status `json:"Status"`
	Accounts         Link    `json:"Accounts"`
	Roles            Link    `json:"Roles"`
}

// Lengths of passwords that accounts may be given, in characters, and of names.
const (
	MinPasswordLength = 8
	MaxPasswordLength = 128
	MaxUsernameLength = 64
)

// Stable returns the resource itself.
func (r *AccountService) Stable() any { return r }

// NewAccountService returns the account service, where logins wait for at most a
// duration after some failed ones.
func NewAccountService(freeFailures int, longestPause time.Duration) *AccountService {
	return &AccountService{
		Header:         Header{ODataID: AccountServiceURI, ODataType: "#AccountService.v1_18_1.AccountService", ID: "AccountService", Name: "Account Service"},
		ServiceEnabled: true, LocalAccountAuth: "Enabled", HTTPBasicAuth: "Enabled",
		SupportedAccountTypes: []string{"Redfish", "IPMI"}, Status: enabled,
		MinPasswordLength: MinPasswordLength, MaxPasswordLength: MaxPasswordLength,
		LockoutThreshold: freeFailures, LockoutDuration: int(longestPause / time.Second),
		Accounts: Link{AccountsURI}, Roles: Link{RolesURI},
	}
}

// ManagerAccount is a user who may log in. Its password is never told: it is null.
type ManagerAccount struct {
	Header
	Messages               any          `json:"@Message.ExtendedInfo,omitempty"`
	UserName               string       `json:"UserName"`
	Password               *string      `json:"Password"`
	RoleID                 string       `json:"RoleId"`
	Enabled                bool         `json:"Enabled"`
	Locked                 bool         `json:"Locked"`
	PasswordChangeRequired bool         `json:"PasswordChangeRequired"`
	AccountTypes           []string     `json:"AccountTypes"`
	StrictAccountTypes     bool         `json:"StrictAccountTypes"`
	Links                  AccountLinks `json:"Links"`
}

// AccountLinks is the links of an account.
type AccountLinks struct {
	Role Link `json:"Role"`
}

// Stable returns the account without the messages of an answer.
func (r *ManagerAccount) Stable() any {
	c := *r
	c.Messages = nil
	return &c
}

// User is what an account resource is made of.
type User struct {
	Name, Role             string
	IPMI                   bool // it may use IPMI too
	Disabled               bool
	PasswordChangeRequired bool
}

// NewManagerAccount returns the account of a user. No account is ever locked as a
// whole: failed logins slow down who fails, from where that is.
func NewManagerAccount(u User) *ManagerAccount {
	return &ManagerAccount{
		Header:   Header{ODataID: MemberURI(AccountsURI, u.Name), ODataType: "#ManagerAccount.v1_14_1.ManagerAccount", ID: u.Name, Name: "User Account"},
		UserName: u.Name, RoleID: u.Role, Enabled: !u.Disabled, PasswordChangeRequired: u.PasswordChangeRequired,
		AccountTypes: AccountTypes(u.IPMI), StrictAccountTypes: true,
		Links: AccountLinks{Link{MemberURI(RolesURI, u.Role)}},
	}
}

// AccountTypes returns the types of an account that may use Redfish and, with ipmi,
// IPMI.
func AccountTypes(ipmi bool) []string {
	if ipmi {
		return []string{"Redfish", "IPMI"}
	}
	return []string{"Redfish"}
}

// Role is what its accounts may do.
type Role struct {
	Header
	RoleID             string   `json:"RoleId"`
	IsPredefined       bool     `json:"IsPredefined"`
	AssignedPrivileges []string `json:"AssignedPrivileges"`
}

// Stable returns the resource itself.
func (r *Role) Stable() any { return r }

// NewRole returns a predefined role.
func NewRole(name string, privileges []string) *Role {
	return &Role{
		Header: Header{ODataID: MemberURI(RolesURI, name), ODataType: "#Role.v1_3_3.Role", ID: name, Name: name + " Role"},
		RoleID: name, IsPredefined: true, AssignedPrivileges: privileges,
	}
}
