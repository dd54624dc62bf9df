// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"cmp"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// maxFilterDepth bounds how deep expressions are in one another.
const maxFilterDepth = 32

// Filter is a condition on a resource: comparisons (eq, ne, gt, ge, lt, le) of
// properties and literals, joined by and, or, not and parentheses.
type Filter interface {
	matches(resource map[string]any) bool
}

type (
	both       struct{ left, right Filter }
	either     struct{ left, right Filter }
	negation   struct{ of Filter }
	comparison struct {
		left, right operand
		operator    string
	}
	// operand is the path of a property, or a literal where that is nil.
	operand struct {
		path    []string
		literal any // string, float64, bool or nil
	}
)

func (f both) matches(r map[string]any) bool     { return f.left.matches(r) && f.right.matches(r) }
func (f either) matches(r map[string]any) bool   { return f.left.matches(r) || f.right.matches(r) }
func (f negation) matches(r map[string]any) bool { return !f.of.matches(r) }

func (f comparison) matches(r map[string]any) bool {
	left, right := f.left.of(r), f.right.of(r)
	switch f.operator {
	case "eq":
		return left == right
	case "ne":
		return left != right
	}
	order, ok := compare(left, right)
	switch f.operator {
	case "gt":
		return ok && order > 0
	case "ge":
		return ok && order >= 0
	case "lt":
		return ok && order < 0
	default:
		return ok && order <= 0
	}
}

// of returns an operand's value in a resource: what is not there is nil, as what
// is null, and so are arrays and objects.
func (o operand) of(resource map[string]any) any {
	if o.path == nil {
		return o.literal
	}
	var value any = resource
	for _, name := range o.path {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	switch value := value.(type) {
	case json.Number:
		n, err := value.Float64()
		if err != nil {
			return nil
		}
		return n
	case string, bool, float64:
		return value
	default:
		return nil
	}
}

// compare orders two numbers or two strings, those that are both times as such.
func compare(left, right any) (int, bool) {
	switch left := left.(type) {
	case float64:
		if right, ok := right.(float64); ok {
			return cmp.Compare(left, right), true
		}
	case string:
		right, ok := right.(string)
		if !ok {
			return 0, false
		}
		earlier, err := time.Parse(time.RFC3339, left)
		later, err2 := time.Parse(time.RFC3339, right)
		if err == nil && err2 == nil {
			return earlier.Compare(later), true
		}
		return cmp.Compare(left, right), true
	}
	return 0, false
}

var (
	numberPattern = regexp.MustCompile(`^[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
	pathPattern   = regexp.MustCompile(`^[A-Za-z@#_][A-Za-z0-9@#._-]*(/[A-Za-z@#_][A-Za-z0-9@#._-]*)*$`)
	// token is a parenthesis, a string in quotes, or a word.
	token = regexp.MustCompile(`^(?:[()]|'(?:[^']|'')*'|[^\s()']+)`)
)

var errFilter = errors.New("not an expression")

// parser reads a filter.
type parser struct {
	rest  string
	next  string // the token at hand; empty at the end
	depth int
}

func parseFilter(text string) (Filter, error) {
	p := &parser{rest: text}
	if err := p.advance(); err != nil {
		return nil, err
	}
	f, err := p.or()
	if err != nil || p.next != "" {
		return nil, errFilter
	}
	return f, nil
}

func (p *parser) advance() error {
	p.rest = strings.TrimLeft(p.rest, " \t")
	p.next = token.FindString(p.rest)
	if p.next == "" && p.rest != "" {
		return errFilter
	}
	p.rest = p.rest[len(p.next):]
	return nil
}

func (p *parser) or() (Filter, error) {
	left, err := p.and()
	for err == nil && p.next == "or" {
		var right Filter
		if err = p.advance(); err == nil {
			right, err = p.and()
			left = either{left, right}
		}
	}
	return left, err
}

func (p *parser) and() (Filter, error) {
	left, err := p.term()
	for err == nil && p.next == "and" {
		var right Filter
		if err = p.advance(); err == nil {
			right, err = p.term()
			left = both{left, right}
		}
	}
	return left, err
}

// term is a negation, an expression in parentheses or a comparison.
func (p *parser) term() (Filter, error) {
	if p.depth++; p.depth > maxFilterDepth {
		return nil, errFilter
	}
	defer func() { p.depth-- }()
	switch p.next {
	case "not":
		if err := p.advance(); err != nil {
			return nil, err
		}
		f, err := p.term()
		return negation{f}, err
	case "(":
		if err := p.advance(); err != nil {
			return nil, err
		}
		f, err := p.or()
		if err != nil || p.next != ")" {
			return nil, errFilter
		}
		return f, p.advance()
	}
	return p.comparison()
}

func (p *parser) comparison() (Filter, error) {
	left, err := p.operand()
	if err != nil {
		return nil, err
	}
	operator := p.next
	switch operator {
	case "eq", "ne", "gt", "ge", "lt", "le":
	default:
		return nil, errFilter
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	right, err := p.operand()
	return comparison{left, right, operator}, err
}

func (p *parser) operand() (operand, error) {
	word := p.next
	if err := p.advance(); err != nil {
		return operand{}, err
	}
	switch {
	case strings.HasPrefix(word, "'"):
		return operand{literal: strings.ReplaceAll(word[1:len(word)-1], "''", "'")}, nil
	case word == "true", word == "false":
		return operand{literal: word == "true"}, nil
	case word == "null":
		return operand{}, nil
	case numberPattern.MatchString(word):
		n, err := strconv.ParseFloat(word, 64)
		return operand{literal: n}, err
	case pathPattern.MatchString(word):
		return operand{path: strings.Split(word, "/")}, nil
	}
	return operand{}, errFilter
}
