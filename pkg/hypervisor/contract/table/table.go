// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package table has what a suite finds out about run strategies and actions, so
// that two hypervisors can be laid side by side.
package table

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// DirectoryVariable names the environment variable that has the directory to
// which suites write their tables; nothing is written without it.
const DirectoryVariable = "KUBEVIRTBMC_TABLES"

// Row is one action in one situation.
type Row struct {
	// Strategy is the machine's run strategy, From the state that it is in.
	Strategy, From string
	Action         string
	// Result is what came of it.
	Result string
}

func (r Row) key() [3]string { return [3]string{r.Strategy, r.From, r.Action} }

// Table is a set of rows in the order of their places. It may be filled by
// several goroutines.
type Table struct {
	mu   sync.Mutex
	rows map[int]Row
}

// Set puts a row into a place.
func (t *Table) Set(place int, row Row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		t.rows = map[int]Row{}
	}
	t.rows[place] = row
}

// Rows returns the rows in the order of their places.
func (t *Table) Rows() []Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	places := make([]int, 0, len(t.rows))
	for place := range t.rows {
		places = append(places, place)
	}
	slices.Sort(places)
	rows := make([]Row, 0, len(places))
	for _, place := range places {
		rows = append(rows, t.rows[place])
	}
	return rows
}

// Text renders rows in columns.
func Text(rows []Row) string {
	cells := [][]string{{"run strategy", "from", "action", "result"}}
	for _, row := range rows {
		cells = append(cells, []string{row.Strategy, row.From, row.Action, row.Result})
	}
	return columns(cells)
}

// columns aligns cells.
func columns(rows [][]string) string {
	var widths []int
	for _, cells := range rows {
		for n, cell := range cells {
			if n == len(widths) {
				widths = append(widths, 0)
			}
			widths[n] = max(widths[n], len(cell))
		}
	}
	var text strings.Builder
	for _, cells := range rows {
		line := ""
		for n, cell := range cells {
			line += fmt.Sprintf("%-*s  ", widths[n], cell)
		}
		text.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return text.String()
}

// Save writes the rows of a hypervisor to a file of the directory that
// DirectoryVariable names, if it does.
func Save(table, hypervisor string, rows []Row) error {
	directory := os.Getenv(DirectoryVariable)
	if directory == "" {
		return nil
	}
	var text strings.Builder
	for _, row := range rows {
		cells := []string{row.Strategy, row.From, row.Action, row.Result}
		for n := range cells {
			cells[n] = strings.NewReplacer("\t", " ", "\n", " ").Replace(cells[n])
		}
		text.WriteString(strings.Join(cells, "\t") + "\n")
	}
	if err := os.MkdirAll(directory, 0o755); err != nil { //nolint:gosec // test results are no secret
		return err
	}
	return os.WriteFile(filepath.Join(directory, table+"."+hypervisor+".tsv"), []byte(text.String()), 0o644) //nolint:gosec // test results are no secret
}

// Load reads what Save wrote.
func Load(directory, table, hypervisor string) ([]Row, error) {
	file, err := os.Open(filepath.Join(directory, table+"."+hypervisor+".tsv"))
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	var rows []Row
	for lines := bufio.NewScanner(file); lines.Scan(); {
		cells := strings.Split(lines.Text(), "\t")
		if len(cells) != 4 {
			return nil, fmt.Errorf("%s: line %d has %d cells, want 4", file.Name(), len(rows)+1, len(cells))
		}
		rows = append(rows, Row{Strategy: cells[0], From: cells[1], Action: cells[2], Result: cells[3]})
	}
	return rows, nil
}

// missing stands for the result of a row that a hypervisor does not have.
const missing = "(no row)"

// Compare lays the rows of two hypervisors side by side, and counts those that
// differ.
func Compare(nameA, nameB string, a, b []Row) (text string, differences int) {
	results := map[[3]string]string{}
	for _, row := range b {
		results[row.key()] = row.Result
	}
	rows := slices.Clone(a)
	for _, row := range a {
		delete(results, row.key())
	}
	for _, row := range b {
		if _, only := results[row.key()]; only {
			rows = append(rows, Row{row.Strategy, row.From, row.Action, missing})
		}
	}
	for _, row := range b {
		results[row.key()] = row.Result
	}
	cells := [][]string{{"", "run strategy", "from", "action", nameA, nameB}}
	for _, row := range rows {
		other, ok := results[row.key()]
		if !ok {
			other = missing
		}
		mark := ""
		if other != row.Result {
			mark = "!"
			differences++
		}
		cells = append(cells, []string{mark, row.Strategy, row.From, row.Action, row.Result, other})
	}
	return columns(cells), differences
}
