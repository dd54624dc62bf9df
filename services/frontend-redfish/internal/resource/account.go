// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package resource

// AccountService tells of who may log in.
type AccountService struct {
	Header
	ServiceEnabled        bool     `json:"ServiceEnabled"`
	LocalAccountAuth      string   `json:"LocalAccountAuth"`
	HTTPBasicAuth         string   `json:"HTTPBasicAuth"`
	SupportedAccountTypes []string `json:"SupportedAccountTypes"`
	Status                *Status  `json:"Status"`
	Accounts              Link     `json:"Accounts"`
	Roles                 Link     `json:"Roles"`
}

// Stable returns the resource itself.
func (r *AccountService) Stable() any { return r }

// NewAccountService returns the account service.
func NewAccountService() *AccountService {
	return &AccountService{
		Header:         Header{ODataID: AccountServiceURI, ODataType: "#AccountService.v1_18_1.AccountService", ID: "AccountService", Name: "Account Service"},
		ServiceEnabled: true, LocalAccountAuth: "Enabled", HTTPBasicAuth: "Enabled",
		SupportedAccountTypes: []string{"Redfish", "IPMI"}, Status: enabled,
		Accounts: Link{AccountsURI}, Roles: Link{RolesURI},
	}
}

// ManagerAccount is a user who may log in. Its password is never told: it is null.
type ManagerAccount struct {
	Header
	UserName               string       `json:"UserName"`
	Password               *string      `json:"Password"`
	RoleID                 string       `json:"RoleId"`
	Enabled                bool         `json:"Enabled"`
	PasswordChangeRequired bool         `json:"PasswordChangeRequired"`
	AccountTypes           []string     `json:"AccountTypes"`
	StrictAccountTypes     bool         `json:"StrictAccountTypes"`
	Links                  AccountLinks `json:"Links"`
}

// AccountLinks is the links of an account.
type AccountLinks struct {
	Role Link `json:"Role"`
}

// Stable returns the resource itself.
func (r *ManagerAccount) Stable() any { return r }

// NewManagerAccount returns the account of a user, who may use Redfish and, with
// ipmi, IPMI.
func NewManagerAccount(username, role string, ipmi bool) *ManagerAccount {
	a := &ManagerAccount{
		Header:   Header{ODataID: MemberURI(AccountsURI, username), ODataType: "#ManagerAccount.v1_14_1.ManagerAccount", ID: username, Name: "User Account"},
		UserName: username, RoleID: role, Enabled: true,
		AccountTypes: []string{"Redfish"}, StrictAccountTypes: true,
		Links: AccountLinks{Link{MemberURI(RolesURI, role)}},
	}
	if ipmi {
		a.AccountTypes = append(a.AccountTypes, "IPMI")
	}
	return a
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
