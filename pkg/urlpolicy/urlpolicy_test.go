// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package urlpolicy_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"kubevirtbmc.dev/pkg/urlpolicy"
)

func TestNew_refuses(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]urlpolicy.Config{
		"scheme":           {Schemes: []string{"file"}},
		"not a CIDR":       {Deny: []string{"10.0.0.0/33"}},
		"half an address":  {Allow: []string{"10.0.0"}},
		"empty entry":      {Deny: []string{""}},
		"URL":              {Allow: []string{"http://images.example"}},
		"star in between":  {Allow: []string{"a.*.example"}},
		"host and port":    {Allow: []string{"images.example:80"}},
		"label too long":   {Allow: []string{strings.Repeat("a", 64) + ".example"}},
		"number as a host": {Deny: []string{"2130706433"}},
	} {
		if _, err := urlpolicy.New(config); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	endpoints := func() []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:443")} }
	for name, test := range map[string]struct {
		config urlpolicy.Config
		open   []string
		closed []string
	}{
		"default": {
			urlpolicy.Config{Endpoints: endpoints},
			[]string{
				"http://images.example/a.iso", "HTTPS://images.example:8443/a.iso", "http://10.0.0.1/a.iso", "http://192.168.1.1:8080/",
				"http://[fd00::1]/", "http://10.96.0.1/", "http://10.96.0.1:8443/", "http://[2001:db8::1]/",
			},
			[]string{
				"ftp://images.example/", "file:///etc/passwd", "http:///x", "http:opaque", "gopher://x", "http://images.example:0/", "http://images.example:70000/",
				"http://127.0.0.1/", "http://127.9.9.9:8080/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[::127.0.0.1]/",
				"http://169.254.169.254/latest/meta-data/", "http://[fe80::1%25eth0]/", "http://[fd00:ec2::254]/", "http://100.100.100.200/",
				"http://224.0.0.1/", "http://[ff02::1]/", "http://255.255.255.255/", "http://0.0.0.0/", "http://[::]/",
				"http://[64:ff9b::7f00:1]/", "http://[64:ff9b::a9fe:a9fe]/", "http://[2002:7f00:1::]/", "http://[2002:a9fe:a9fe::1]/",
				"https://10.96.0.1/api", "https://10.96.0.1:443/api", "http://10.96.0.1:443/", "https://[::ffff:10.96.0.1]/", "https://[64:ff9b::a60:1]/",
			},
		},
		"names alone are allowed": {
			urlpolicy.Config{Allow: []string{"images.example", "*.Mirror.example"}},
			[]string{"http://images.example/", "http://IMAGES.example./", "http://a.mirror.example/", "http://a.b.mirror.example/"},
			[]string{"http://example/", "http://mirror.example/", "http://xmirror.example/", "http://images.example.evil/", "http://10.0.0.1/"},
		},
		"a range is allowed": {
			urlpolicy.Config{Allow: []string{"10.0.0.0/8", "::ffff:192.0.2.0/120"}},
			[]string{"http://10.1.2.3/", "http://[::ffff:10.1.2.3]/", "http://192.0.2.9/", "http://name.example/"},
			[]string{"http://11.0.0.1/", "http://192.0.3.9/"},
		},
		"closed though allowed": {
			urlpolicy.Config{Allow: []string{"10.0.0.0/8", "*.example"}, Deny: []string{"10.0.0.7", "bad.example"}},
			[]string{"http://10.0.0.8/", "http://good.example/"},
			[]string{"http://10.0.0.7/", "http://bad.example/", "http://BAD.example./"},
		},
		"nothing is closed": {
			urlpolicy.Config{Deny: []string{}},
			[]string{"http://127.0.0.1/", "http://[::1]/"},
			[]string{"ftp://images.example/"},
		},
		"https alone": {
			urlpolicy.Config{Schemes: []string{"https"}},
			[]string{"https://images.example/"},
			[]string{"http://images.example/"},
		},
	} {
		p, err := urlpolicy.New(test.config)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, text := range test.open {
			if err := p.CheckURL(parse(t, text)); err != nil {
				t.Errorf("%s: %s: %v", name, text, err)
			}
		}
		for _, text := range test.closed {
			if err := p.CheckURL(parse(t, text)); !errors.Is(err, urlpolicy.ErrDenied) {
				t.Errorf("%s: %s: got %v, want %v", name, text, err, urlpolicy.ErrDenied)
			}
		}
	}
}

func parse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestDialer: the address that a name resolves to is what counts, and a name
// that is allowed opens its address.
func TestDialer(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	own, err := netip.ParseAddrPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	for name, test := range map[string]struct {
		config urlpolicy.Config
		host   string
		open   bool
	}{
		"loopback by name":         {urlpolicy.Config{}, "localhost", false},
		"loopback by address":      {urlpolicy.Config{}, "127.0.0.1", false},
		"loopback as IPv6":         {urlpolicy.Config{}, "::ffff:127.0.0.1", false},
		"loopback is open":         {urlpolicy.Config{Deny: []string{}}, "localhost", true},
		"the range is allowed":     {urlpolicy.Config{Deny: []string{}, Allow: []string{"127.0.0.0/8"}}, "localhost", true},
		"the name is allowed":      {urlpolicy.Config{Deny: []string{}, Allow: []string{"localhost"}}, "localhost", true},
		"another range is allowed": {urlpolicy.Config{Deny: []string{}, Allow: []string{"10.0.0.0/8"}}, "localhost", false},
		"another name is allowed":  {urlpolicy.Config{Deny: []string{}, Allow: []string{"images.example"}}, "127.0.0.1", false},
		"allowed but closed":       {urlpolicy.Config{Allow: []string{"localhost"}}, "localhost", false},
		"a port that is closed":    {urlpolicy.Config{Deny: []string{}, Endpoints: func() []netip.AddrPort { return []netip.AddrPort{own} }}, "localhost", false},
		"another port that is closed": {urlpolicy.Config{Deny: []string{}, Endpoints: func() []netip.AddrPort {
			return []netip.AddrPort{netip.AddrPortFrom(own.Addr(), own.Port()+1)}
		}}, "127.0.0.1", true},
	} {
		p, err := urlpolicy.New(test.config)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		d := &urlpolicy.Dialer{Policy: p}
		connection, err := d.DialContext(context.Background(), "tcp4", net.JoinHostPort(test.host, port))
		if connection != nil {
			_ = connection.Close()
		}
		if test.open != (err == nil) || (!test.open && !errors.Is(err, urlpolicy.ErrDenied)) {
			t.Errorf("%s: got %v, want open %t", name, err, test.open)
		}
	}
}

// FuzzCheckURL: no URL that the default policy leaves open names one of the
// addresses that it closes.
func FuzzCheckURL(f *testing.F) {
	for _, seed := range []string{
		"http://images.example/a.iso", "http://127.0.0.1/", "http://[::ffff:7f00:1]/", "http://[fe80::1%25lo]/", "https://user:pass@10.0.0.1:443/?q#f",
		"http://0x7f.1/", "http://2130706433/", "http://127.1/", "HTTP://[::]/", "http://[64:ff9b::169.254.169.254]:80/",
	} {
		f.Add(seed)
	}
	p, err := urlpolicy.New(urlpolicy.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil || p.CheckURL(u) != nil {
			return
		}
		if u.Hostname() == "" || (!strings.EqualFold(u.Scheme, "http") && !strings.EqualFold(u.Scheme, "https")) {
			t.Errorf("%q is open", text)
		}
		address, err := netip.ParseAddr(u.Hostname())
		if err != nil {
			return
		}
		address = address.Unmap()
		if address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsMulticast() || address.IsUnspecified() {
			t.Errorf("%q is open", text)
		}
	})
}
