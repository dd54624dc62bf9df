// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"kubevirtbmc.dev/services/frontend-redfish/internal/message"
)

// properties is a JSON object of a request.
type properties map[string]json.RawMessage

// readBody returns the JSON object of a request's body; nil for an empty body,
// whatever its media type: clients send actions without parameters that way.
func readBody(c *call) (properties, *message.Error) {
	raw, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBodyBytes))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, message.Errorf(http.StatusRequestEntityTooLarge, message.PayloadTooLarge)
		}
		return nil, message.Errorf(http.StatusBadRequest, message.MalformedJSON)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	if t := c.r.Header.Get("Content-Type"); t != "" {
		media, _, err := mime.ParseMediaType(t)
		if err != nil || media != "application/json" {
			return nil, message.Errorf(http.StatusUnsupportedMediaType, message.HeaderInvalid, "Content-Type")
		}
	}
	var p properties
	if err := json.Unmarshal(raw, &p); err != nil || p == nil {
		return nil, message.Errorf(http.StatusBadRequest, message.MalformedJSON)
	}
	return p, nil
}

// text returns a property that has to be a string; nil where it is absent,
// wrong where it is something else.
func (p properties) text(name string) (value *string, wrong bool) {
	raw, ok := p[name]
	if !ok {
		return nil, false
	}
	if err := json.Unmarshal(raw, &value); err != nil || value == nil {
		return nil, true
	}
	return value, false
}

// show returns a property as the client wrote it, for a message.
func (p properties) show(name string) string {
	return shorten(string(p[name]))
}

// shorten cuts what a client sent to what a message may repeat.
func shorten(s string) string {
	const most = 128
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}
