// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package query reads the query parameters of DSP0266 ("Query parameters") and
// applies them to the JSON of a resource.
package query

import (
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Limits.
const (
	// MaxLevels is the largest value of $levels.
	MaxLevels = 3
	// maxExpanded bounds how many resources an answer is expanded with.
	maxExpanded = 2000
)

// Query is what a request asks for. Its zero value asks for nothing.
type Query struct {
	// Only asks for the member of a collection that has just one.
	Only bool
	// Expand says which links are replaced by what they lead to.
	Expand Expand
	// Levels is how often that is done, one within another; 0 without Expand.
	Levels int
	// Select is the paths of the properties to keep; nil: all.
	Select [][]string
	// Filter is which members of a collection to keep; nil: all.
	Filter Filter
	// Skip and Top are how many members to leave out at the start, and to keep
	// then; Top is -1 for all.
	Skip, Top int

	paged bool
}

// Expand is the kinds of links to expand.
type Expand byte

// Kinds of links.
const (
	// ExpandNone leaves links as they are.
	ExpandNone Expand = 0
	// ExpandAll is all links.
	ExpandAll Expand = '*'
	// ExpandNoLinks is those outside of Links objects.
	ExpandNoLinks Expand = '.'
	// ExpandLinks is those in Links objects.
	ExpandLinks Expand = '~'
)

// Kind is what is wrong with a query.
type Kind int

// Kinds of errors.
const (
	// Unsupported: this service does not have the parameter.
	Unsupported Kind = iota
	// Format: the value can't be read.
	Format
	// OutOfRange: the value is too small or too large.
	OutOfRange
	// Combination: parameters exclude each other.
	Combination
	// WrongResource: the resource is not one for the parameter.
	WrongResource
)

// Error is what is wrong with a query.
type Error struct {
	Kind
	// Parameter and Value are those of the request, Range is what can be.
	Parameter, Value, Range string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("query parameter %s=%s can't be used (allowed: %s)", e.Parameter, e.Value, e.Range)
}

var expandPattern = regexp.MustCompile(`^([*.~])(?:\(\$levels=([0-9]{1,9})\))?$`)

// Parse reads a query. Parameters that are not known are passed over, unless they
// begin with $.
func Parse(values url.Values) (Query, *Error) {
	q := Query{Top: -1}
	known := 0
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name][0]
		wrong := func(kind Kind) *Error {
			return &Error{Kind: kind, Parameter: name, Value: value, Range: "0-" + strconv.Itoa(math.MaxInt32)}
		}
		if name != "only" && !strings.HasPrefix(name, "$") {
			continue
		}
		known++
		if len(values[name]) > 1 {
			return Query{}, wrong(Combination)
		}
		switch name {
		case "only":
			if value != "" {
				return Query{}, wrong(Format)
			}
			q.Only = true
		case "$expand":
			match := expandPattern.FindStringSubmatch(value)
			if match == nil {
				return Query{}, wrong(Format)
			}
			q.Expand, q.Levels = Expand(match[1][0]), 1
			if match[2] != "" {
				q.Levels, _ = strconv.Atoi(match[2]) // Digits alone, of an int's size.
			}
			if q.Levels < 1 || q.Levels > MaxLevels {
				return Query{}, &Error{Kind: OutOfRange, Parameter: name, Value: value, Range: fmt.Sprintf("$levels 1-%d", MaxLevels)}
			}
		case "$select":
			for path := range strings.SplitSeq(value, ",") {
				steps := strings.Split(strings.TrimSpace(path), "/")
				if slices.Contains(steps, "") {
					return Query{}, wrong(Format)
				}
				q.Select = append(q.Select, steps)
			}
		case "$filter":
			filter, err := parseFilter(value)
			if err != nil {
				return Query{}, wrong(Format)
			}
			q.Filter = filter
		case "$skip", "$top":
			n, err := strconv.ParseInt(value, 10, 32)
			switch {
			case err != nil && !numberPattern.MatchString(value):
				return Query{}, wrong(Format)
			case err != nil, n < 0:
				return Query{}, wrong(OutOfRange)
			}
			q.paged = true
			if name == "$top" {
				q.Top = int(n)
			} else {
				q.Skip = int(n)
			}
		default:
			return Query{}, wrong(Unsupported)
		}
	}
	if q.Only && known > 1 {
		return Query{}, &Error{Kind: Combination, Parameter: "only"}
	}
	return q, nil
}

// IsZero tells whether a query asks for nothing.
func (q Query) IsZero() bool {
	return !q.Only && q.Expand == ExpandNone && q.Select == nil && q.Filter == nil && !q.paged
}

// Follows tells whether other resources are read for a query.
func (q Query) Follows() bool { return q.Only || q.Expand != ExpandNone || q.Filter != nil }
