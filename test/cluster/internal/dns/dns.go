// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Package dns answers queries for the addresses of Kubernetes services, so
// that pods of a test cluster find each other by name.
//
// It knows names of the form SERVICE.NAMESPACE.svc.cluster.local, IPv4, UDP
// and nothing else: there is no network to forward other names to.
package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"time"
)

// Resolver tells the addresses of services.
type Resolver interface {
	// Addresses returns the cluster IP of a service or, if it has none, the
	// addresses of its ready endpoints. It returns ErrNotFound if there is no
	// such service.
	Addresses(ctx context.Context, namespace, service string) ([]net.IP, error)
}

// ErrNotFound says that a service does not exist.
var ErrNotFound = errors.New("no such service")

// domain is the end of the names that we know.
const domain = ".svc.cluster.local"

const (
	headerSize = 12
	// maxSize is the longest message over UDP without extensions.
	maxSize = 512

	typeA   = 1
	classIN = 1

	// ttl is how long answers may be kept, in seconds. Tests do not wait.
	ttl = 1

	codeOK       = 0
	codeFailure  = 2
	codeNoName   = 3
	codeNotDoing = 4
)

// queryTimeout bounds the time to answer.
const queryTimeout = 4 * time.Second

// Serve answers queries until reading fails.
func Serve(conn net.PacketConn, r Resolver) error {
	for {
		b := make([]byte, maxSize)
		n, from, err := conn.ReadFrom(b)
		if err != nil {
			return err
		}
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
			defer cancel()
			if a := answer(ctx, b[:n], r); a != nil {
				conn.WriteTo(a, from)
			}
		}()
	}
}

// answer returns the answer to a query, or nil if it is none.
func answer(ctx context.Context, query []byte, r Resolver) []byte {
	if len(query) < headerSize || query[2]&0x80 != 0 {
		return nil
	}
	name, end, ok := parseName(query, headerSize)
	if !ok || len(query) < end+4 || binary.BigEndian.Uint16(query[4:]) != 1 {
		return nil
	}
	qtype, class := binary.BigEndian.Uint16(query[end:]), binary.BigEndian.Uint16(query[end+2:])
	code, addresses := byte(codeNotDoing), []net.IP(nil)
	if query[2]>>3&0xf == 0 && class == classIN {
		code, addresses = resolve(ctx, name, r)
	}
	if qtype != typeA {
		addresses = nil // the name exists, without an address of that kind
	}
	// Header (RFC 1035, section 4.1.1): an authoritative response, recursion
	// as it was desired, and one question.
	a := append([]byte{query[0], query[1], 0x84 | query[2]&0x01, 0x80 | code, 0, 1, 0, 0, 0, 0, 0, 0}, query[headerSize:end+4]...)
	count := uint16(0)
	for _, ip := range addresses {
		if ip = ip.To4(); ip == nil || len(a)+16 > maxSize {
			continue
		}
		// The name is a pointer to the question.
		a = append(a, 0xc0, headerSize, 0, typeA, 0, classIN, 0, 0, 0, ttl, 0, net.IPv4len)
		a = append(a, ip...)
		count++
	}
	binary.BigEndian.PutUint16(a[6:], count)
	return a
}

// resolve returns a response code and addresses.
func resolve(ctx context.Context, name string, r Resolver) (byte, []net.IP) {
	short, ok := strings.CutSuffix(strings.ToLower(name), domain)
	service, namespace, ok2 := strings.Cut(short, ".")
	if !ok || !ok2 || service == "" || namespace == "" || strings.Contains(namespace, ".") {
		return codeNoName, nil
	}
	addresses, err := r.Addresses(ctx, namespace, service)
	switch {
	case errors.Is(err, ErrNotFound):
		return codeNoName, nil
	case err != nil:
		return codeFailure, nil
	}
	return codeOK, addresses
}

// parseName reads the labels of a question's name, which is not compressed.
func parseName(b []byte, at int) (name string, end int, ok bool) {
	var labels []string
	for at < len(b) {
		n := int(b[at])
		at++
		if n == 0 {
			return strings.Join(labels, "."), at, true
		}
		if n > 63 || at+n > len(b) {
			return "", 0, false
		}
		labels = append(labels, string(b[at:at+n]))
		at += n
	}
	return "", 0, false
}
