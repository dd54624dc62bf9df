// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound says that there is no such machine.
	ErrNotFound = errors.New("machine not found")
	// ErrNoInstance says that the machine has no instance to act on.
	ErrNoInstance = errors.New("machine has no instance")
	// ErrNoTray says that the machine has no CD-ROM tray of that name.
	ErrNoTray = errors.New("machine has no such tray")
	// ErrStale says that a compare-and-swap found another value than the
	// caller expected. Read again and decide again.
	ErrStale = errors.New("object has changed")
	// ErrUnderway is KubeVirt's HTTP 500 to a start or restart while an earlier
	// request is pending. The request is lost; it may be repeated later.
	ErrUnderway = errors.New("unable to complete request: stop/start already underway")
	// ErrUnavailable says that the hypervisor's API can't be reached or that
	// the cache has not been filled yet. Retry with back-off.
	ErrUnavailable = errors.New("hypervisor unavailable")
	// ErrUnseen says that a write has been carried out but the cache does not
	// show it yet. It is an ErrUnavailable too.
	ErrUnseen = fmt.Errorf("%w: the cache does not show the change yet", ErrUnavailable)
	// ErrUnsupported says that the hypervisor can't do this to this machine,
	// whatever its state.
	ErrUnsupported = errors.New("not supported by the hypervisor")
	// ErrForeignMedium says that the tray holds a medium that was not put there
	// by Insert.
	ErrForeignMedium = errors.New("tray holds a medium of somebody else")
)

// ConflictError is KubeVirt's HTTP 409: the verb does not fit the machine's
// present state.
type ConflictError struct {
	// Message is KubeVirt's text.
	Message string
}

func (e *ConflictError) Error() string { return e.Message }

// Conflictf makes a *ConflictError.
func Conflictf(format string, args ...any) error {
	return &ConflictError{Message: fmt.Sprintf(format, args...)}
}

// InvalidError is KubeVirt's HTTP 400 or 422: the request itself is refused, as
// a boot order that two devices share.
type InvalidError struct {
	// Message is KubeVirt's text.
	Message string
}

func (e *InvalidError) Error() string { return e.Message }

// Invalidf makes an *InvalidError.
func Invalidf(format string, args ...any) error {
	return &InvalidError{Message: fmt.Sprintf(format, args...)}
}
