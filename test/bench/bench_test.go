// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package bench measures whole programs.
package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"kubevirtbmc.dev/test/launch"
)

func TestMain(m *testing.M) {
	status := m.Run()
	launch.CleanUp()
	os.Exit(status)
}

// residentBytes returns the resident memory of a process.
func residentBytes(tb testing.TB, pid int) float64 {
	tb.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if fields := strings.Fields(scanner.Text()); fields[0] == "VmRSS:" {
			var kib float64
			if _, err := fmt.Sscan(fields[1], &kib); err != nil {
				tb.Fatal(err)
			}
			return kib * 1024
		}
	}
	tb.Fatal("no VmRSS")
	return 0
}

// presencePing is an RMCP/ASF presence ping (ASF 2.0 section 3.2.4.2), which a
// BMC answers without a login.
var presencePing = []byte{0x06, 0x00, 0xff, 0x06, 0x00, 0x00, 0x11, 0xbe, 0x80, 0x01, 0x00, 0x00}

// answers tells whether BMC number i answers over IPMI and Redfish.
func answers(ctx context.Context, s *launch.Standalone, client *http.Client, i int) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", "127.0.0.1:"+s.IPMIPort(i))
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write(presencePing); err != nil {
		return err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err != nil {
		return err
	}
	if n != 28 || answer[8] != 0x40 {
		return fmt.Errorf("presence ping answered with % x", answer[:n])
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.Redfish(i)+"/redfish/v1/Systems/1", nil)
	if err != nil {
		return err
	}
	req.SetBasicAuth(s.Username, s.Password)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET Systems/1: %s", resp.Status)
	}
	return nil
}

// newClient returns an HTTP client that trusts s and keeps no connections.
func newClient(tb testing.TB, s *launch.Standalone) *http.Client {
	tb.Helper()
	pem, err := os.ReadFile(s.CAFile)
	if err != nil {
		tb.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
}

func checkAll(tb testing.TB, s *launch.Standalone, n int) {
	tb.Helper()
	client := newClient(tb, s)
	var group sync.WaitGroup
	numbers := make(chan int)
	for range 4 {
		group.Go(func() {
			for i := range numbers {
				if err := answers(tb.Context(), s, client, i); err != nil {
					tb.Errorf("BMC %d: %v", i, err)
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	group.Wait()
}

// A thousand BMCs in one process start and all answer.
func TestStandalone_thousandBMCs(t *testing.T) {
	const n = 1000
	s := launch.StartStandalone(t, n, "--log-level", "warn")
	checkAll(t, s, n)
}

// BenchmarkStandalone reports what BMCs cost in one standalone process: the
// resident memory for each, over that of a process with one, idle and after
// each was asked once over IPMI and Redfish, and the time from start to served.
func BenchmarkStandalone(b *testing.B) {
	one := launch.StartStandalone(b, 1, "--log-level", "warn")
	base := residentBytes(b, one.PID())
	for _, n := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("BMCs=%d", n), func(b *testing.B) {
			for b.Loop() {
				start := time.Now()
				s := launch.StartStandalone(b, n, "--log-level", "warn")
				b.ReportMetric(time.Since(start).Seconds(), "s-to-served")
				b.ReportMetric((residentBytes(b, s.PID())-base)/float64(n-1), "idle-B/BMC")
				checkAll(b, s, n)
				b.ReportMetric((residentBytes(b, s.PID())-base)/float64(n-1), "used-B/BMC")
				b.ReportMetric(base, "B-with-one-BMC")
				if err := s.Stop(); err != nil {
					b.Error(err)
				}
			}
		})
	}
}
