// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package watch sends the states of a machine to the client of a stream.
package watch

import (
	"context"

	"google.golang.org/protobuf/proto"
)

// Send sends what read returns, at once and again after each change, until the
// context ends or one of the functions fails. A message like the one before is
// left out; a client that reads slowly misses those in between.
func Send[M proto.Message](ctx context.Context, changes <-chan struct{}, read func() (M, error), send func(M) error) error {
	var last M
	for first := true; ; first = false {
		message, err := read()
		if err != nil {
			return err
		}
		if first || !proto.Equal(message, last) {
			if err := send(message); err != nil {
				return err
			}
			last = message
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
