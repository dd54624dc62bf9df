// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package urlpolicy says which servers a service may talk to at the wish of a BMC's
// user: the URL of an image, or of a receiver of events, is the user's, who must not
// reach through the service what only the service can reach.
//
// A host name is checked as it stands in the URL. An address is checked when it is
// connected to, so neither a name that resolves to another address later nor a
// redirect gets past it.
package urlpolicy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// DefaultSchemes are the schemes that are served.
var DefaultSchemes = []string{"http", "https"}

// groups are names for addresses that stand in lists.
var groups = map[string][]netip.Prefix{
	// RFC 1122 3.2.1.3, RFC 4291 2.5.3.
	"loopback": prefixes("127.0.0.0/8", "::1/128"),
	// RFC 3927, RFC 4291 2.5.6. Clouds serve their metadata, credentials of the
	// node among it, at 169.254.169.254 and some at other addresses.
	"link-local": prefixes("169.254.0.0/16", "fe80::/10"),
	"metadata":   prefixes("169.254.169.254/32", "fd00:ec2::254/128", "fd20:ce::254/128", "100.100.100.200/32", "168.63.129.16/32"),
	// RFC 5771, RFC 4291 2.7, RFC 919.
	"multicast": prefixes("224.0.0.0/4", "ff00::/8", "255.255.255.255/32"),
	// RFC 1122 3.2.1.3, RFC 4291 2.5.2. Linux connects to itself.
	"unspecified": prefixes("0.0.0.0/8", "::/128"),
}

// DefaultDeny is the list of what is closed. Private ranges are open: provisioners
// serve from them.
var DefaultDeny = []string{"loopback", "link-local", "metadata", "multicast", "unspecified"}

// Groups returns the names of the groups of addresses.
func Groups() []string { return slices.Sorted(maps.Keys(groups)) }

// ErrDenied says that the policy closes a URL or an address.
var ErrDenied = errors.New("denied by the policy for URLs")

// Config of a policy.
type Config struct {
	// Schemes, lower case; nil: DefaultSchemes.
	Schemes []string
	// Allow has the host names, addresses, CIDRs and groups that are open;
	// empty: all. A name that begins with "*." is any name below the rest. An
	// address is open as well if it belongs to a name that is.
	Allow []string
	// Deny has what is closed, even if Allow has it; nil: DefaultDeny.
	Deny []string
	// Endpoints are single ports of hosts that are closed whatever the lists
	// say, as the Kubernetes API is; nil: none. It is called at each connection
	// and has to answer at once.
	Endpoints func() []netip.AddrPort
}

// Policy is a list of what is open.
type Policy struct {
	schemes     []string
	allow, deny rules
	open        bool
	endpoints   func() []netip.AddrPort
}

// rules are the entries of a list.
type rules struct {
	names    []string
	prefixes []netip.Prefix
}

// New makes a policy. The error names the entry that can't be understood.
func New(config Config) (*Policy, error) {
	p := &Policy{schemes: config.Schemes, open: len(config.Allow) == 0, endpoints: config.Endpoints}
	if p.schemes == nil {
		p.schemes = DefaultSchemes
	}
	for _, scheme := range p.schemes {
		if !slices.Contains(DefaultSchemes, scheme) {
			return nil, fmt.Errorf("scheme %q is none of %s", scheme, strings.Join(DefaultSchemes, ", "))
		}
	}
	deny := config.Deny
	if deny == nil {
		deny = DefaultDeny
	}
	var err error
	if p.allow, err = parse(config.Allow); err != nil {
		return nil, fmt.Errorf("allow: %w", err)
	}
	if p.deny, err = parse(deny); err != nil {
		return nil, fmt.Errorf("deny: %w", err)
	}
	return p, nil
}

func parse(entries []string) (rules, error) {
	var r rules
	for _, entry := range entries {
		if group, ok := groups[entry]; ok {
			r.prefixes = append(r.prefixes, group...)
			continue
		}
		if prefix, err := netip.ParsePrefix(entry); err == nil {
			r.prefixes = append(r.prefixes, plain(prefix))
			continue
		}
		if address, err := netip.ParseAddr(entry); err == nil {
			address = address.Unmap().WithZone("")
			r.prefixes = append(r.prefixes, netip.PrefixFrom(address, address.BitLen()))
			continue
		}
		name := canonical(entry)
		if !validName(strings.TrimPrefix(name, "*.")) {
			return rules{}, fmt.Errorf("%q is neither a host name, an address, a CIDR nor one of %s", entry, strings.Join(Groups(), ", "))
		}
		r.names = append(r.names, name)
	}
	return r, nil
}

// plain is a prefix of IPv4 addresses in their own form where it is one of
// IPv4-mapped IPv6 addresses.
func plain(prefix netip.Prefix) netip.Prefix {
	if a := prefix.Addr(); a.Is4In6() && prefix.Bits() >= 96 {
		return netip.PrefixFrom(a.Unmap(), prefix.Bits()-96).Masked()
	}
	return prefix.Masked()
}

// validName tells whether a text has the form of a host name.
func validName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	// A list that meant an address must not end up as a name that never matches.
	last := name[strings.LastIndexByte(name, '.')+1:]
	return strings.Trim(last, "0123456789") != ""
}

// canonical is a host name in the form in which names are compared.
func canonical(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

func (r rules) name(host string) bool {
	return slices.ContainsFunc(r.names, func(name string) bool {
		if rest, ok := strings.CutPrefix(name, "*"); ok {
			return strings.HasSuffix(host, rest) && host != rest
		}
		return host == name
	})
}

func (r rules) address(addresses []netip.Addr) bool {
	return slices.ContainsFunc(r.prefixes, func(prefix netip.Prefix) bool {
		return slices.ContainsFunc(addresses, prefix.Contains)
	})
}

// CheckURL tells whether a URL may be asked for: nil, or an error that is
// ErrDenied. It resolves nothing; CheckAddress has the last word.
func (p *Policy) CheckURL(u *url.URL) error {
	if scheme := strings.ToLower(u.Scheme); !slices.Contains(p.schemes, scheme) {
		return fmt.Errorf("%w: scheme %q is none of %s", ErrDenied, scheme, strings.Join(p.schemes, ", "))
	}
	host := u.Hostname()
	if host == "" || u.Opaque != "" {
		return fmt.Errorf("%w: URL without a host", ErrDenied)
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%w: no such port", ErrDenied)
		}
	}
	if address, err := netip.ParseAddr(host); err == nil {
		return p.checkAddress("", netip.AddrPortFrom(address, portOf(u)))
	}
	if p.deny.name(canonical(host)) {
		return fmt.Errorf("%w: host %s", ErrDenied, host)
	}
	if !p.open && !p.allow.name(canonical(host)) && len(p.allow.prefixes) == 0 {
		return fmt.Errorf("%w: host %s is not allowed", ErrDenied, host)
	}
	return nil
}

func portOf(u *url.URL) uint16 {
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		return uint16(n)
	}
	if strings.EqualFold(u.Scheme, "https") {
		return 443
	}
	return 80
}

// checkAddress tells whether an address may be connected to for a host of a URL,
// which is empty where the URL has the address itself.
func (p *Policy) checkAddress(host string, to netip.AddrPort) error {
	addresses := same(to.Addr())
	if p.deny.address(addresses) {
		return fmt.Errorf("%w: address %s", ErrDenied, to.Addr())
	}
	if p.endpoints != nil {
		for _, endpoint := range p.endpoints() {
			if endpoint.Port() == to.Port() && slices.Contains(addresses, endpoint.Addr().Unmap().WithZone("")) {
				return fmt.Errorf("%w: address %s", ErrDenied, to)
			}
		}
	}
	if p.open || p.allow.address(addresses) || (host != "" && p.allow.name(canonical(host))) {
		return nil
	}
	return fmt.Errorf("%w: address %s is not allowed", ErrDenied, to.Addr())
}

// embedded are the prefixes of IPv6 addresses that a gateway turns into the IPv4
// address in them, and at which byte that is.
var embedded = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},   // NAT64, RFC 6052
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12}, // NAT64, RFC 8215
	{netip.MustParsePrefix("::/96"), 12},          // IPv4-compatible, RFC 4291 2.5.5.1
	{netip.MustParsePrefix("2002::/16"), 2},       // 6to4, RFC 3056
}

// same returns an address and the IPv4 address that it stands for, if any.
func same(address netip.Addr) []netip.Addr {
	address = address.Unmap().WithZone("")
	addresses := []netip.Addr{address}
	if !address.Is6() {
		return addresses
	}
	b := address.As16()
	for _, e := range embedded {
		if e.prefix.Contains(address) {
			addresses = append(addresses, netip.AddrFrom4([4]byte(b[e.at:e.at+4])))
		}
	}
	return addresses
}

// Dialer connects to what a policy leaves open.
type Dialer struct {
	Policy *Policy
	// Timeout of one connection; 0: none.
	Timeout time.Duration
	// Resolver is used in place of the system's unless it is nil.
	Resolver *net.Resolver
}

// DialContext connects to "host:port". The error is ErrDenied when the policy
// closes the address that the host has just resolved to.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDenied, err)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		host = ""
	}
	dialer := &net.Dialer{
		Timeout:  d.Timeout,
		Resolver: d.Resolver,
		Control: func(_, resolved string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrDenied, err)
			}
			return d.Policy.checkAddress(host, to)
		},
	}
	return dialer.DialContext(ctx, network, address)
}

func prefixes(list ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(list))
	for n, one := range list {
		parsed[n] = netip.MustParsePrefix(one)
	}
	return parsed
}
