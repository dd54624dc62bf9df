// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	registryv1 "kubevirtbmc.dev/proto/gen/go/bmc/registry/v1"
	"kubevirtbmc.dev/services/frontend-redfish/internal/account"
)

func user(name string) account.Account {
	return account.Account{Username: name, Role: registryv1.Role_ROLE_OPERATOR}
}

func TestTable_endsIdleSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var table Table
		_, used := table.Create(user("a"), "192.0.2.1")
		idle, idleToken := table.Create(user("a"), "192.0.2.1")
		for range 3 {
			time.Sleep(Timeout - time.Minute)
			if _, ok := table.Use(used); !ok {
				t.Fatal("a session in use ended")
			}
		}
		if _, ok := table.Use(idleToken); ok {
			t.Error("an idle session lives on")
		}
		if _, ok := table.Get(idle.ID); ok {
			t.Error("an idle session is still listed")
		}
		time.Sleep(Timeout + time.Second)
		if n := table.Expire(); n != 0 || table.sessions != nil {
			t.Errorf("%d sessions are left", n)
		}
	})
}

func TestTable_makesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var table Table
		tokens := map[string]string{}
		for i := range Limit {
			name := "many"
			if i == 0 {
				name = "one"
			}
			_, token := table.Create(user(name), "")
			tokens[fmt.Sprint(name, i)] = token
			time.Sleep(time.Second)
		}
		table.Use(tokens["many1"])
		time.Sleep(time.Second)
		_, newest := table.Create(user("many"), "")
		for name, want := range map[string]bool{"one0": true, "many1": true, "many2": false, "many3": true} {
			if _, ok := table.Use(tokens[name]); ok != want {
				t.Errorf("session %s is there: %v, want %v", name, ok, want)
			}
		}
		if _, ok := table.Use(newest); !ok {
			t.Error("the new session is not there")
		}
		// A user without sessions takes the place of whoever was idle longest.
		_, other := table.Create(user("other"), "")
		if _, ok := table.Use(other); !ok || len(table.List()) != Limit {
			t.Errorf("a further user: %v, %d sessions", ok, len(table.List()))
		}
	})
}

func TestTable_tokensAndIDs(t *testing.T) {
	t.Parallel()
	var table Table
	seen := map[string]bool{}
	for range Limit {
		s, token := table.Create(user("a"), "")
		if len(token) < 40 || seen[token] || seen[s.ID] || s.ID == token {
			t.Fatalf("token of %d characters, id %q", len(token), s.ID)
		}
		seen[token], seen[s.ID] = true, true
		if _, ok := table.Use(s.ID); ok {
			t.Fatal("a session's id serves as its token")
		}
	}
	if n := table.Keep(func(s Session) bool { return false }); n != Limit {
		t.Errorf("Keep ended %d sessions, want %d", n, Limit)
	}
	if table.Delete("nothing") {
		t.Error("Delete of what is not there is true")
	}
}
