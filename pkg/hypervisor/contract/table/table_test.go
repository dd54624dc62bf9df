// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package table_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubevirtbmc.dev/pkg/hypervisor/contract/table"
)

func TestTable(t *testing.T) {
	directory := t.TempDir()
	t.Setenv(table.DirectoryVariable, directory)
	var one, two table.Table
	one.Set(1, table.Row{Strategy: "Manual", From: "off", Action: "stop", Result: "refused"})
	one.Set(0, table.Row{Strategy: "Always", From: "on", Action: "stop", Result: "accepted"})
	two.Set(0, table.Row{Strategy: "Always", From: "on", Action: "stop", Result: "accepted"})
	two.Set(1, table.Row{Strategy: "Manual", From: "off", Action: "stop", Result: "refused:\tno"})
	two.Set(2, table.Row{Strategy: "Manual", From: "off", Action: "start", Result: "accepted"})
	for name, rows := range map[string][]table.Row{"one": one.Rows(), "two": two.Rows()} {
		if err := table.Save("actions", name, rows); err != nil {
			t.Fatal(err)
		}
	}
	a, err := table.Load(directory, "actions", "one")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(one.Rows(), a); diff != "" {
		t.Errorf("rows mismatch (-saved +loaded)\n%s", diff)
	}
	b, err := table.Load(directory, "actions", "two")
	if err != nil {
		t.Fatal(err)
	}
	text, differences := table.Compare("one", "two", a, b)
	want := `   run strategy  from  action  one       two
   Always        on    stop    accepted  accepted
!  Manual        off   stop    refused   refused: no
!  Manual        off   start   (no row)  accepted
`
	if diff := cmp.Diff(want, text); diff != "" || differences != 2 {
		t.Errorf("%d differences, want 2; text mismatch (-want +got)\n%s", differences, diff)
	}
}
