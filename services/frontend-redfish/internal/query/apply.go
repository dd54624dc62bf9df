// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"maps"
	"slices"
	"strings"
)

// Fetch reads the resource at a URI for whom the answer is for; nil when there is
// none, or none for the caller.
type Fetch func(uri string) (map[string]any, error)

// Apply applies a query to a resource, which it may change, in the order of
// DSP0266: $filter, $skip, $top, $expand, $select.
func (q Query) Apply(resource map[string]any, fetch Fetch) (map[string]any, error) {
	members, isCollection := resource["Members"].([]any)
	if !isCollection {
		switch {
		case q.Only:
			return nil, &Error{Kind: WrongResource, Parameter: "only"}
		case q.Filter != nil:
			return nil, &Error{Kind: WrongResource, Parameter: "$filter"}
		case q.paged:
			return nil, &Error{Kind: WrongResource, Parameter: "$skip, $top"}
		}
	}
	if q.Only && len(members) == 1 {
		member, err := fetch(linkOf(members[0]))
		if member == nil || err != nil {
			return resource, err
		}
		return member, nil
	}
	if q.Filter != nil {
		kept := []any{}
		for _, m := range members {
			member, err := fetch(linkOf(m))
			if err != nil {
				return nil, err
			}
			if member != nil && q.Filter.matches(member) {
				kept = append(kept, m)
			}
		}
		members = kept
		resource["Members@odata.count"] = len(members)
	}
	if isCollection {
		// The count is that of the collection, not of the part (DSP0266, "Resource
		// collection responses").
		members = members[min(q.Skip, len(members)):]
		if q.Top >= 0 {
			members = members[:min(q.Top, len(members))]
		}
		resource["Members"] = members
	}
	if q.Expand != ExpandNone {
		e := expander{kind: q.Expand, fetch: fetch}
		e.ancestors = []string{linkOf(resource)}
		if err := e.object(resource, q.Levels, false); err != nil {
			return nil, err
		}
	}
	if q.Select != nil {
		choose(resource, q.Select)
	}
	return resource, nil
}

// linkOf returns a value's @odata.id; empty when it has none.
func linkOf(v any) string {
	object, _ := v.(map[string]any)
	uri, _ := object["@odata.id"].(string)
	return uri
}

// expander replaces links.
type expander struct {
	kind  Expand
	fetch Fetch
	// ancestors are the resources that are being expanded: a link back to one stays
	// a link.
	ancestors []string
	expanded  int
}

// object expands the links of an object, which is within a Links object or not.
func (e *expander) object(object map[string]any, levels int, inLinks bool) error {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if name == "Actions" || strings.HasPrefix(name, "@") && e.kind != ExpandAll {
			continue
		}
		value, err := e.value(object[name], levels, inLinks || name == "Links")
		if err != nil {
			return err
		}
		object[name] = value
	}
	return nil
}

func (e *expander) value(value any, levels int, inLinks bool) (any, error) {
	switch value := value.(type) {
	case []any:
		for i := range value {
			var err error
			if value[i], err = e.value(value[i], levels, inLinks); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		uri := linkOf(value)
		if len(value) == 1 && uri != "" {
			return e.link(value, uri, levels, inLinks)
		}
		return value, e.object(value, levels, inLinks)
	}
	return value, nil
}

func (e *expander) link(link map[string]any, uri string, levels int, inLinks bool) (any, error) {
	wanted := e.kind == ExpandAll || inLinks == (e.kind == ExpandLinks)
	if !wanted || e.expanded >= maxExpanded || slices.Contains(e.ancestors, uri) {
		return link, nil
	}
	resource, err := e.fetch(uri)
	if resource == nil || err != nil {
		return link, err
	}
	e.expanded++
	if levels > 1 {
		e.ancestors = append(e.ancestors, uri)
		if err := e.object(resource, levels-1, false); err != nil {
			return nil, err
		}
		e.ancestors = e.ancestors[:len(e.ancestors)-1]
	}
	return resource, nil
}

// choose drops what no path leads to, except for what tells resources apart.
func choose(object map[string]any, paths [][]string) {
	for name, value := range object {
		if name == "@odata.id" || name == "@odata.type" || name == "@odata.etag" {
			continue
		}
		whole := false
		var deeper [][]string
		for _, path := range paths {
			if path[0] == name {
				if len(path) == 1 {
					whole = true
				} else {
					deeper = append(deeper, path[1:])
				}
			}
		}
		switch {
		case whole:
		case deeper == nil, !chooseIn(value, deeper):
			delete(object, name)
		}
	}
}

// chooseIn chooses within a value, and tells whether that can be.
func chooseIn(value any, paths [][]string) bool {
	switch value := value.(type) {
	case map[string]any:
		choose(value, paths)
		return len(value) > 0
	case []any:
		for _, v := range value {
			if object, ok := v.(map[string]any); ok {
				choose(object, paths)
			}
		}
		return true
	default:
		return false
	}
}
