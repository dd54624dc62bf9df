// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
	"kubevirtbmc.dev/services/frontend-redfish/internal/resource"
)

// change reads what a PATCH or POST wants of a resource. Values that can't be are
// problems, which refuse the whole request; properties that can't be set are notes,
// which go along with the answer where others could (DSP0266, "PATCH (update)").
type change struct {
	body            properties
	pointer         string // JSON pointer of the object that the properties are in
	problems, notes []message.Message
	taken           map[string]bool
}

// readChange reads the body of a request that changes a resource.
func readChange(c *call) (*change, *message.Error) {
	body, refusal := readBody(c)
	switch {
	case refusal != nil:
		return nil, refusal
	case body == nil:
		return nil, message.Errorf(http.StatusBadRequest, message.MalformedJSON)
	case len(body) == 0:
		return nil, message.Errorf(http.StatusBadRequest, message.EmptyJSON)
	}
	return newChange(body, "#"), nil
}

func newChange(body properties, pointer string) *change {
	return &change{body: body, pointer: pointer, taken: map[string]bool{}}
}

func (c *change) about(name string) string { return c.pointer + "/" + escapePointer(name) }

// reject notes that a property's value can't be. The arguments of its message follow
// the key.
func (c *change) reject(name string, key message.Key, args ...string) {
	c.problems = append(c.problems, message.New(key, args...).About(c.about(name)))
}

// has tells whether a property is in the request.
func (c *change) has(name string) bool { _, ok := c.body[name]; return ok }

// text returns a string; nil where it is absent or wrong.
func (c *change) text(name string) *string {
	c.taken[name] = true
	value, wrong := c.body.text(name)
	if wrong {
		c.reject(name, message.PropertyValueTypeError, c.body.show(name), name)
	}
	return value
}

// secret returns a string that no answer may repeat; nil where it is absent or wrong.
func (c *change) secret(name string) *string {
	c.taken[name] = true
	value, wrong := c.body.text(name)
	if wrong {
		c.reject(name, message.PropertyValueTypeError, hidden, name)
	}
	return value
}

// hidden stands in answers for what may be a password.
const hidden = "******"

// boolean returns a boolean; nil where it is absent or wrong.
func (c *change) boolean(name string) *bool {
	raw, ok := c.body[name]
	if !ok {
		return nil
	}
	c.taken[name] = true
	var value *bool
	if err := json.Unmarshal(raw, &value); err != nil || value == nil {
		c.reject(name, message.PropertyValueTypeError, c.body.show(name), name)
		return nil
	}
	return value
}

// texts returns an array of strings; nil where it is absent or wrong.
func (c *change) texts(name string) []string {
	raw, ok := c.body[name]
	if !ok {
		return nil
	}
	c.taken[name] = true
	var values []*string
	if err := json.Unmarshal(raw, &values); err != nil || values == nil || slices.Contains(values, nil) {
		c.reject(name, message.PropertyValueTypeError, c.body.show(name), name)
		return nil
	}
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = *v
	}
	return list
}

// object returns the change of a nested object; nil where it is absent or wrong.
func (c *change) object(name string) *change {
	raw, ok := c.body[name]
	if !ok {
		return nil
	}
	c.taken[name] = true
	var nested properties
	if err := json.Unmarshal(raw, &nested); err != nil || nested == nil {
		c.reject(name, message.PropertyValueTypeError, c.body.show(name), name)
		return nil
	}
	return newChange(nested, c.about(name))
}

// join adds what a nested object's change found.
func (c *change) join(nested *change) {
	c.problems, c.notes = append(c.problems, nested.problems...), append(c.notes, nested.notes...)
}

// rest notes the properties that nobody asked for: those of the resource can't be
// written, others are not known. Annotations are for readers.
func (c *change) rest(served map[string]bool) {
	for name := range c.body {
		switch {
		case c.taken[name] || strings.Contains(name, "@"):
		case served[name]:
			c.notes = append(c.notes, message.New(message.PropertyNotWritable, name).About(c.about(name)))
		default:
			c.notes = append(c.notes, message.New(message.PropertyUnknown, shorten(name)).About(c.about(name)))
		}
	}
	slices.SortFunc(c.problems, byArguments)
	slices.SortFunc(c.notes, byArguments)
}

// refusal returns the answer to a request that can't be carried out; nil where it
// can, in that something is left to change.
func (c *change) refusal(something bool) *message.Error {
	switch {
	case len(c.problems) > 0:
		return &message.Error{Status: http.StatusBadRequest, Messages: slices.Concat(c.problems, c.notes)}
	case something:
		return nil
	case len(c.notes) > 0:
		return &message.Error{Status: http.StatusBadRequest, Messages: c.notes}
	}
	return message.Errorf(http.StatusBadRequest, message.NoOperation)
}

// checkMatch refuses a change whose If-Match names another state of a resource.
func checkMatch(c *call, r resource.Resource) *message.Error {
	if matches(c.r.Header.Values("If-Match"), resource.SetETag(r)) {
		return nil
	}
	return message.Errorf(http.StatusPreconditionFailed, message.PreconditionFailed)
}
