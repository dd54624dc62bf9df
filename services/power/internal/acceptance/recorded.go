// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package acceptance

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"kubevirtbmc.dev/pkg/hypervisor/contract/table"
)

// source returns a path as seen from this file's folder, wherever the test runs.
func source(path string) string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), path)
}

// checkRecorded compares rows with the table that is on record, and the guide's
// table with it.
func (suite Suite) checkRecorded(t *testing.T, rows []table.Row) {
	t.Helper()
	table.Check(t, source("testdata/actions.golden"), suite.Update, func(string) string { return table.Text(rows) })
	table.CheckPart(t, source("../../../../docs/power.md"), beginMark, endMark, suite.Update, "\n\n"+guide(rows)+"\n")
}

const (
	beginMark = "<!-- begin: written by services/power/internal/acceptance -->"
	endMark   = "<!-- end -->"
)

// guide renders rows for people: the run strategies that have the same result
// share a line.
func guide(rows []table.Row) string {
	type line struct{ from, action, result string }
	var lines []line
	strategies := map[line][]string{}
	for _, row := range rows {
		l := line{row.From, row.Action, row.Result}
		// The run strategy is said only where the action changes it.
		if result, strategy, ok := cutStrategy(row.Result); ok && strategy == kept(row) {
			l.result = result + "; kept"
		}
		if strategies[l] == nil {
			lines = append(lines, l)
		}
		strategies[l] = append(strategies[l], row.Strategy)
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		if a.from != b.from || a.action == b.action {
			return 0
		}
		return strings.Compare(a.action, b.action)
	})
	var text strings.Builder
	from := ""
	for _, l := range lines {
		if l.from != from {
			if from != "" {
				text.WriteString("\n")
			}
			from = l.from
			fmt.Fprintf(&text, "### Machine: %s\n\n| action | run strategy | what happens | run strategy then |\n|---|---|---|---|\n", from)
		}
		under := strings.Join(strategies[l], ", ")
		if len(strategies[l]) == len(allStrategies) {
			under = "any"
		}
		result, then, ok := cutStrategy(l.result)
		if !ok {
			then = ""
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s |\n", l.action, under, result, then)
	}
	return text.String()
}

// kept is the run strategy that a machine has before the action, as KubeVirt
// names it. One that was made off has another as soon as it is on.
func kept(row table.Row) string {
	switch row.Strategy {
	case running.name:
		return always.name
	case stopped.name, halted.name:
		if row.From != "off" {
			return rerun.name
		}
		return halted.name
	default:
		return row.Strategy
	}
}

// cutStrategy cuts the run strategy off a result that has one.
func cutStrategy(result string) (rest, strategy string, ok bool) {
	n := strings.LastIndex(result, "; ")
	if n < 0 {
		return result, "", false
	}
	return result[:n], result[n+2:], true
}
