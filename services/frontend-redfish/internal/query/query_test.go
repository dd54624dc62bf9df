// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree is a small service: a collection of machines, which link to each other.
var tree = map[string]string{
	"/m":   `{"@odata.id":"/m","@odata.type":"#C","Name":"Machines","Members@odata.count":3,"Members":[{"@odata.id":"/m/1"},{"@odata.id":"/m/2"},{"@odata.id":"/m/3"}]}`,
	"/m/1": `{"@odata.id":"/m/1","@odata.type":"#M","Name":"one","Cores":2,"On":true,"Made":"2026-01-01T00:00:00Z","Status":{"State":"Enabled","Health":"OK"},"Disks":{"@odata.id":"/d"},"Links":{"Chassis":[{"@odata.id":"/c"}]},"Actions":{"#Reset":{"target":"/m/1/Reset"}}}`,
	"/m/2": `{"@odata.id":"/m/2","@odata.type":"#M","Name":"it's two","Cores":16,"On":false,"Made":"2026-01-01T01:00:00+02:00","Status":{"State":"Disabled"},"Links":{"Chassis":[{"@odata.id":"/c"}]}}`,
	"/m/3": `{"@odata.id":"/m/3","@odata.type":"#M","Name":"three","Cores":null,"Links":{"Chassis":[{"@odata.id":"/gone"}]}}`,
	"/d":   `{"@odata.id":"/d","@odata.type":"#C","Members@odata.count":1,"Members":[{"@odata.id":"/d/1"}]}`,
	"/d/1": `{"@odata.id":"/d/1","@odata.type":"#D","Name":"disk","Links":{"Machine":{"@odata.id":"/m/1"}}}`,
	"/c":   `{"@odata.id":"/c","@odata.type":"#Ch","Name":"chassis","Links":{"Machines":[{"@odata.id":"/m/1"},{"@odata.id":"/m/2"}]}}`,
}

func fetch(uri string) (map[string]any, error) {
	raw, ok := tree[uri]
	if !ok {
		return nil, nil
	}
	decoder := json.NewDecoder(strings.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	return object, decoder.Decode(&object)
}

func parse(t *testing.T, raw string) (Query, *Error) {
	t.Helper()
	values, err := url.ParseQuery(raw)
	if err != nil {
		t.Fatal(err)
	}
	return Parse(values)
}

func TestParse_refuses(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]Kind{
		"$apply=x":                     Unsupported,
		"$":                            Unsupported,
		"$expand=":                     Format,
		"$expand=Members":              Format,
		"$expand=.($levels=x)":         Format,
		"$expand=.($levels=0)":         OutOfRange,
		"$expand=.($levels=4)":         OutOfRange,
		"$expand=*($levels=999999999)": OutOfRange,
		"$expand=.&$expand=*":          Combination,
		"$select=":                     Format,
		"$select=Name,":                Format,
		"$select=Name//x":              Format,
		"$top=x":                       Format,
		"$top=":                        Format,
		"$top=-1":                      OutOfRange,
		"$skip=99999999999999999999":   OutOfRange,
		"only&$select=Name":            Combination,
		"only&only":                    Combination,
		"$filter=":                     Format,
		"$filter=Name":                 Format,
		"$filter=Name eq":              Format,
		"$filter=Name eq 'x":           Format,
		"$filter=Name eq 'x' and":      Format,
		"$filter=(Name eq 'x'":         Format,
		"$filter=Name eq 'x')":         Format,
		"$filter=Name like 'x'":        Format,
		"$filter=startswith(Name,'x')": Format,
		"$filter=Name eq 'x' 'y'":      Format,
		"$filter=1e999 eq 1":           Format,
		"$filter=/Name eq 1":           Format,
		"$filter=" + strings.Repeat("(", 1000) + "a eq 1" + strings.Repeat(")", 1000): Format,
		"$filter=" + strings.Repeat("not ", 1000) + "a eq 1":                          Format,
	} {
		if _, err := parse(t, raw); err == nil || err.Kind != want {
			t.Errorf("%.60s: got %v, want kind %d", raw, err, want)
		}
	}
}

func TestParse_passesOver(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"", "foo=bar", "excerpt", "foo=1&foo=2"} {
		if q, err := parse(t, raw); err != nil || !q.IsZero() || q.Follows() {
			t.Errorf("%s: %+v, %v", raw, q, err)
		}
	}
}

// members returns the names or links of a collection's members.
func members(object map[string]any) []string {
	list, _ := object["Members"].([]any)
	names := []string{}
	for _, m := range list {
		names = append(names, linkOf(m))
	}
	return names
}

func TestApply_members(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		raw  string
		want []string
	}{
		{"$top=2", []string{"/m/1", "/m/2"}},
		{"$top=0", []string{}},
		{"$skip=1", []string{"/m/2", "/m/3"}},
		{"$skip=1&$top=1", []string{"/m/2"}},
		{"$skip=7&$top=1", []string{}},
		{"only", []string{"/m/1", "/m/2", "/m/3"}},
		{"$filter=Cores gt 2", []string{"/m/2"}},
		{"$filter=Cores ge 2.0", []string{"/m/1", "/m/2"}},
		{"$filter=Cores lt 16", []string{"/m/1"}},
		{"$filter=Cores le -1", []string{}},
		{"$filter=2 eq Cores", []string{"/m/1"}},
		{"$filter=Cores eq null", []string{"/m/3"}},
		{"$filter=Cores ne null", []string{"/m/1", "/m/2"}},
		{"$filter=Name eq 'it''s two'", []string{"/m/2"}},
		{"$filter=Name gt 'one'", []string{"/m/3"}},
		{"$filter=Name gt 1", []string{}},
		{"$filter=On eq true", []string{"/m/1"}},
		{"$filter=On ne true", []string{"/m/2", "/m/3"}},
		{"$filter=On gt false", []string{}},
		{"$filter=Status/State eq 'Enabled'", []string{"/m/1"}},
		{"$filter=Status/Health eq null", []string{"/m/2", "/m/3"}},
		{"$filter=Status eq null", []string{"/m/1", "/m/2", "/m/3"}},
		{"$filter=Made lt '2026-01-01T00:00:00Z'", []string{"/m/2"}}, // As a time: as a text it is later.
		{"$filter=not (Name eq 'one') and Cores ne null", []string{"/m/2"}},
		{"$filter=Name eq 'one' or Name eq 'three' and On eq true", []string{"/m/1"}},
		{"$filter=(Name eq 'one' or Name eq 'three') and On eq true", []string{"/m/1"}},
		{"$filter=(Name eq 'one' or Name eq 'three')", []string{"/m/1", "/m/3"}},
		{"$filter=Cores ne null&$skip=1", []string{"/m/2"}},
		{"$filter=@odata.id eq '/m/3'", []string{"/m/3"}},
	} {
		raw, want := tc.raw, tc.want
		q, refusal := parse(t, strings.ReplaceAll(raw, "+", "%2B"))
		if refusal != nil {
			t.Errorf("%s: %v", raw, refusal)
			continue
		}
		resource, _ := fetch("/m")
		got, err := q.Apply(resource, fetch)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if d := cmp.Diff(want, members(got)); d != "" {
			t.Errorf("%s (-want +got):\n%s", raw, d)
		}
		// The count is of all that a filter leaves.
		count := any(json.Number("3"))
		if strings.Contains(raw, "$filter") {
			count = len(want)
			if strings.Contains(raw, "$skip") {
				count = 2
			}
		}
		if got["Members@odata.count"] != count {
			t.Errorf("%s: count %v, want %v", raw, got["Members@odata.count"], count)
		}
	}
}

func TestApply_wrongResource(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"only", "$top=1", "$skip=0", "$filter=a eq 1"} {
		q, _ := parse(t, raw)
		resource, _ := fetch("/m/1")
		_, err := q.Apply(resource, fetch)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Kind != WrongResource {
			t.Errorf("%s of one resource: %v", raw, err)
		}
	}
}

func TestApply_only(t *testing.T) {
	t.Parallel()
	q, _ := parse(t, "only")
	resource, _ := fetch("/d")
	if got, err := q.Apply(resource, fetch); err != nil || got["@odata.id"] != "/d/1" {
		t.Errorf("only member is %v, %v", got, err)
	}
}

// expanded lists what has been put in place of links, in order of its paths.
func expanded(v any, path string) []string {
	var found []string
	switch v := v.(type) {
	case map[string]any:
		if path != "" && len(v) > 1 && v["@odata.id"] != nil {
			found = append(found, path+"="+linkOf(v))
		}
		for name, value := range v {
			found = append(found, expanded(value, path+"/"+name)...)
		}
	case []any:
		for _, e := range v {
			found = append(found, expanded(e, path)...)
		}
	}
	slices.Sort(found)
	return found
}

func TestApply_expand(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		uri, query string
		want       []string
	}{
		{"/m", "$expand=.", []string{"/Members=/m/1", "/Members=/m/2", "/Members=/m/3"}},
		{"/m", "$expand=~", nil},
		{"/m", "$expand=.&$top=1", []string{"/Members=/m/1"}},
		{"/m/1", "$expand=.", []string{"/Disks=/d"}},
		{"/m/1", "$expand=~", []string{"/Links/Chassis=/c"}},
		{"/m/1", "$expand=*", []string{"/Disks=/d", "/Links/Chassis=/c"}},
		{"/m/1", "$expand=.($levels=2)", []string{"/Disks/Members=/d/1", "/Disks=/d"}},
		// The way back is no way on.
		{"/m/1", "$expand=*($levels=3)", []string{
			"/Disks/Members=/d/1", "/Disks=/d", "/Links/Chassis/Links/Machines=/m/2", "/Links/Chassis=/c",
		}},
		// What is not there, or not for the caller, stays a link.
		{"/m/3", "$expand=*", nil},
	} {
		q, refusal := parse(t, tc.query)
		if refusal != nil {
			t.Fatal(refusal)
		}
		resource, _ := fetch(tc.uri)
		got, err := q.Apply(resource, fetch)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.want, expanded(got, "")); d != "" {
			t.Errorf("%s?%s (-want +got):\n%s", tc.uri, tc.query, d)
		}
	}
}

func TestApply_expand_isBounded(t *testing.T) {
	t.Parallel()
	const many = 10 * maxExpanded
	members := make([]any, many)
	for i := range members {
		members[i] = map[string]any{"@odata.id": "/d/1"}
	}
	q, _ := parse(t, "$expand=.")
	calls := 0
	_, err := q.Apply(map[string]any{"Members": members}, func(uri string) (map[string]any, error) {
		calls++
		return fetch(uri)
	})
	if err != nil || calls != maxExpanded {
		t.Errorf("%d resources were read, %v", calls, err)
	}
}

func TestApply_errors(t *testing.T) {
	t.Parallel()
	broken := errors.New("no backend")
	for _, raw := range []string{"only", "$filter=a eq 1", "$expand=.", "$expand=*($levels=2)"} {
		q, _ := parse(t, raw)
		resource, _ := fetch("/d")
		if _, err := q.Apply(resource, func(string) (map[string]any, error) { return nil, broken }); !errors.Is(err, broken) {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestApply_select(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ uri, query, want string }{
		{"/m/1", "$select=Name", `{"@odata.id":"/m/1","@odata.type":"#M","Name":"one"}`},
		{"/m/1", "$select=Name, Cores", `{"@odata.id":"/m/1","@odata.type":"#M","Cores":2,"Name":"one"}`},
		{"/m/1", "$select=Status/State", `{"@odata.id":"/m/1","@odata.type":"#M","Status":{"State":"Enabled"}}`},
		{"/m/1", "$select=Status/Health,Status", `{"@odata.id":"/m/1","@odata.type":"#M","Status":{"Health":"OK","State":"Enabled"}}`},
		{"/m/1", "$select=Status/None,Name/x,None", `{"@odata.id":"/m/1","@odata.type":"#M"}`},
		{"/m", "$select=Members&$top=1", `{"@odata.id":"/m","@odata.type":"#C","Members":[{"@odata.id":"/m/1"}]}`},
		{"/d", "$expand=.&$select=Members/Name", `{"@odata.id":"/d","@odata.type":"#C","Members":[{"@odata.id":"/d/1","@odata.type":"#D","Name":"disk"}]}`},
	} {
		q, refusal := parse(t, tc.query)
		if refusal != nil {
			t.Fatal(refusal)
		}
		resource, _ := fetch(tc.uri)
		got, err := q.Apply(resource, fetch)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.want, string(raw)); d != "" {
			t.Errorf("%s?%s (-want +got):\n%s", tc.uri, tc.query, d)
		}
	}
}

func FuzzQuery(f *testing.F) {
	for _, raw := range []string{
		"$filter=(Name eq 'x''y' or not Cores le 1e3) and Status/State ne null", "$expand=*($levels=3)&$select=a/b,c&$skip=1&$top=2",
		"only", "$filter=((((", "$filter='", "$top=%00", "$select=,", "$filter=a eq \xff",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		values, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q, refusal := Parse(values)
		if refusal != nil {
			return
		}
		for uri := range tree {
			resource, _ := fetch(uri)
			got, err := q.Apply(resource, fetch)
			var refusal *Error
			if err != nil && !errors.As(err, &refusal) {
				t.Fatal(err)
			}
			if _, err := json.Marshal(got); err != nil {
				t.Fatal(err)
			}
		}
	})
}
