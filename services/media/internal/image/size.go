// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// ErrFormat says that the image is of a kind whose size can't be told.
var ErrFormat = errors.New("size of such an image can't be told")

// headBytes is how much of an image tells its format.
const headBytes = 512

// Method is how a length was found.
type Method string

// The methods, in the order in which they are tried.
const (
	// MethodHead is the Content-Length of a HEAD.
	MethodHead Method = "HEAD"
	// MethodRange is the Content-Range of a GET of the first bytes.
	MethodRange Method = "Range"
	// MethodLength is the Content-Length of a whole GET that was broken off.
	MethodLength Method = "Length"
	// MethodCount is a whole GET whose bytes were counted.
	MethodCount Method = "Count"
)

// Size of an image.
type Size struct {
	// Length in bytes as the server sends it.
	Length int64
	// Content is the size in bytes of the medium in it: the length, unless the
	// image is compressed or of a disk format that has a size of its own.
	Content int64
	// Ranges says that the server serves parts of the image.
	Ranges bool
	Method Method
}

// Size asks how large an image is: with a HEAD, then a GET of its first bytes,
// then, where the server tells it nowhere, by reading all of it. A compressed
// image is read through, too. The error is one of package urlpolicy, or
// ErrUnreachable, ErrCredentials, ErrNoImage, ErrLength or ErrFormat.
func (c *Client) Size(ctx context.Context, source *Source) (Size, error) {
	var size Size
	announced, err := c.head(ctx, source)
	if err != nil {
		return Size{}, err
	}
	// The first bytes are wanted anyway: they tell the format, and prove a HEAD
	// that a GET does not confirm.
	response, err := c.Request(ctx, source, http.MethodGet, fmt.Sprintf("bytes=0-%d", headBytes-1))
	if err != nil {
		return Size{}, err
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusPartialContent:
		total, ok := rangeTotal(response.Header.Get("Content-Range"))
		if ok {
			size = Size{Length: total, Ranges: true, Method: MethodRange}
		}
	case http.StatusOK:
		if response.ContentLength >= 0 {
			size = Size{Length: response.ContentLength, Method: MethodLength}
		}
	case http.StatusRequestedRangeNotSatisfiable:
		// RFC 9110 15.5.17: of an empty image.
		return Size{}, fmt.Errorf("%w: it is empty", ErrNoImage)
	default:
		return Size{}, statusError(response)
	}
	if announced >= 0 {
		switch {
		case size.Method == "" && response.StatusCode == http.StatusPartialContent:
			size = Size{Length: announced, Ranges: true, Method: MethodHead}
		case size.Method != "" && size.Length != announced:
			return Size{}, fmt.Errorf("%w: HEAD says %d bytes, GET %d", ErrLength, announced, size.Length)
		case size.Method != "":
			size.Method = MethodHead
		}
	}
	beginning, err := io.ReadAll(io.LimitReader(response.Body, headBytes))
	if err != nil {
		return Size{}, err
	}
	if len(beginning) == 0 {
		return Size{}, fmt.Errorf("%w: it is empty", ErrNoImage)
	}
	return c.content(ctx, source, size, beginning, response)
}

// head returns the length that a HEAD tells; -1 for none. Servers that sign URLs
// for one method refuse it, which says nothing about the image.
func (c *Client) head(ctx context.Context, source *Source) (int64, error) {
	response, err := c.Request(ctx, source, http.MethodHead, "")
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return 0, err
	}
	if errors.Is(err, ErrUnreachable) {
		return -1, nil // Some servers close the connection.
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return -1, nil
	}
	return response.ContentLength, nil
}

// Beginnings of the formats that CDI unpacks.
var (
	magicGzip  = []byte{0x1f, 0x8b}                      // RFC 1952 2.3.1
	magicXZ    = []byte{0xfd, '7', 'z', 'X', 'Z', 0}     // .xz format 1.2.1, 2.1.1.1
	magicZstd  = []byte{0x28, 0xb5, 0x2f, 0xfd}          // RFC 8878 3.1.1
	magicQcow2 = []byte{'Q', 'F', 'I', 0xfb}             // QEMU docs/interop/qcow2
	magicVMDK  = []byte{'K', 'D', 'M', 'V'}              // sparse extent header
	magicVHDX  = []byte("vhdxfile")                      // MS-VHDX 2.2.1
	magicVDI   = []byte("<<< Oracle VM VirtualBox Disk") // pre-header text
)

// content adds the size of the medium in the image.
func (c *Client) content(ctx context.Context, source *Source, size Size, beginning []byte, response *http.Response) (Size, error) {
	switch {
	case bytes.HasPrefix(beginning, magicGzip):
		return c.count(ctx, source, size, func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) })
	case bytes.HasPrefix(beginning, magicQcow2):
		// The size is a big-endian 64-bit number at byte 24.
		if len(beginning) < 32 {
			return Size{}, fmt.Errorf("%w: qcow2 header is cut off", ErrLength)
		}
		virtual := binary.BigEndian.Uint64(beginning[24:])
		if virtual == 0 || virtual > 1<<62 {
			return Size{}, fmt.Errorf("%w: qcow2 of %d bytes", ErrFormat, virtual)
		}
		if size.Method == "" {
			counted, err := c.count(ctx, source, size, plain)
			if err != nil {
				return Size{}, err
			}
			size = counted
		}
		size.Content = int64(virtual)
		return size, nil
	case bytes.HasPrefix(beginning, magicXZ), bytes.HasPrefix(beginning, magicZstd), bytes.HasPrefix(beginning, magicVMDK),
		bytes.HasPrefix(beginning, magicVHDX), bytes.Contains(beginning, magicVDI):
		return Size{}, fmt.Errorf("%w: neither raw, ISO, gzip nor qcow2", ErrFormat)
	case size.Method != "":
		size.Content = size.Length
		return size, nil
	case response.StatusCode == http.StatusOK:
		// What has begun is read on.
		n, err := io.Copy(io.Discard, response.Body)
		if err != nil {
			return Size{}, err
		}
		length := n + int64(len(beginning))
		return Size{Length: length, Content: length, Method: MethodCount}, nil
	default:
		return c.count(ctx, source, size, plain)
	}
}

func plain(r io.Reader) (io.Reader, error) { return r, nil }

// counter counts what is read.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// count reads the whole image and what is in it.
func (c *Client) count(ctx context.Context, source *Source, size Size, unpack func(io.Reader) (io.Reader, error)) (Size, error) {
	response, err := c.Request(ctx, source, http.MethodGet, "")
	if err != nil {
		return Size{}, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return Size{}, statusError(response)
	}
	packed := &counter{Reader: response.Body}
	unpacked, err := unpack(packed)
	if err != nil {
		return Size{}, damaged(err)
	}
	content, err := io.Copy(io.Discard, unpacked)
	if err != nil {
		return Size{}, damaged(err)
	}
	if _, err := io.Copy(io.Discard, packed); err != nil {
		return Size{}, err
	}
	if size.Method != "" && packed.n != size.Length {
		return Size{}, fmt.Errorf("%w: %d bytes, not %d", ErrLength, packed.n, size.Length)
	}
	return Size{Length: packed.n, Content: content, Ranges: size.Ranges, Method: MethodCount}, nil
}

// damaged is an error of unpacking.
func damaged(err error) error {
	switch {
	case errors.Is(err, ErrUnreachable), errors.Is(err, ErrLength), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", ErrLength, err)
	default:
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
}
