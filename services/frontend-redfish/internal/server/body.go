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
	"os"
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
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.w.Header().Set("Connection", "close")
			e := message.Errorf(http.StatusRequestTimeout, message.GeneralError)
			e.Text = "The request's body did not arrive in time."
			return nil, e
		}
		return nil, message.Errorf(http.StatusBadRequest, message.MalformedJSON)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	for coding := range strings.SplitSeq(strings.Join(c.r.Header.Values("Content-Encoding"), ","), ",") {
		if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
			c.w.Header().Set("Accept-Encoding", "identity") // RFC 9110, section 15.5.16.
			return nil, message.Errorf(http.StatusUnsupportedMediaType, message.HeaderInvalid, "Content-Encoding")
		}
	}
	if t := c.r.Header.Get("Content-Type"); t != "" {
		media, _, err := mime.ParseMediaType(t)
		if err != nil || media != "application/json" {
			return nil, message.Errorf(http.StatusUnsupportedMediaType, message.HeaderInvalid, "Content-Type")
		}
	}
	var p properties
	if err := json.Unmarshal(raw, &p); err != nil || p == nil || hasDuplicates(raw) {
		return nil, message.Errorf(http.StatusBadRequest, message.MalformedJSON)
	}
	return p, nil
}

// hasDuplicates tells whether an object in valid JSON has a name twice. Which of
// the values is meant depends on who reads it (RFC 8259, section 4).
func hasDuplicates(raw []byte) bool {
	type level struct {
		names map[string]bool // nil in an array
		value bool            // the next token of an object is a value
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	levels := []level{{}}
	for {
		token, err := decoder.Token()
		if err != nil {
			return false // The end.
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if top := &levels[len(levels)-1]; top.names != nil {
			if name, ok := token.(string); ok && !top.value {
				if top.names[name] {
					return true
				}
				top.names[name] = true
			}
			top.value = !top.value
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{names: map[string]bool{}})
		case json.Delim('['):
			levels = append(levels, level{})
		}
	}
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
