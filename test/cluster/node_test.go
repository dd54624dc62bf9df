// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"encoding/json"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseCgroups(t *testing.T) {
	got := parseCgroups("9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/\nrubbish\n")
	for c, want := range map[string]string{
		"systemd": "/sys/fs/cgroup/systemd", "memory": "/sys/fs/cgroup/memory/a/b",
		"cpu": "/sys/fs/cgroup/cpu/c", "cpuacct": "/sys/fs/cgroup/cpuacct/c", "pids": "",
	} {
		if got[c] != want {
			t.Errorf("cgroup of %s is %q, want %q", c, got[c], want)
		}
	}
}

func TestNewNetwork_ranges_of_clusters_do_not_overlap(t *testing.T) {
	var seen []netip.Prefix
	for i := range maxClusters {
		n := newNetwork(i)
		services := netip.MustParsePrefix(n.services)
		if services != services.Masked() {
			t.Errorf("cluster %d: services %s", i, n.services)
		}
		for _, p := range []netip.Prefix{services, netip.MustParsePrefix(n.pods), netip.MustParsePrefix(n.nodeIP + "/24").Masked()} {
			if at := slices.IndexFunc(seen, p.Overlaps); at >= 0 {
				t.Errorf("cluster %d: %s overlaps %s", i, p, seen[at])
			}
			seen = append(seen, p)
		}
		if len(n.link) > 15 {
			t.Errorf("cluster %d: link name %q is longer than the kernel takes", i, n.link)
		}
	}
}

func TestFirstAddress(t *testing.T) {
	if got := firstAddress("10.96.16.0/20"); !got.Equal(net.IPv4(10, 96, 16, 1)) {
		t.Errorf("firstAddress() = %s, want 10.96.16.1", got)
	}
}

func TestNodeSpec(t *testing.T) {
	bin := binaries{}
	for _, x := range targets(LevelKubeVirt, KubeVirtVersions()[0]) {
		bin[x.name] = "/bin/" + x.name
	}
	n := newNetwork(3)
	s := nodeSpec("/state", bin, n, "Gate=false")
	var names []string
	for _, d := range s.Daemons {
		names = append(names, d.Name)
		if want := "/state/log/" + d.Name + ".log"; d.Log != want {
			t.Errorf("%s logs to %s, want %s", d.Name, d.Log, want)
		}
	}
	if want := []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd", "kubelet", "kube-proxy", "dns"}; !slices.Equal(names, want) {
		t.Errorf("daemons %q, want %q", names, want)
	}
	var cni struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct{ Subnet string }
			}
		}
	}
	if err := json.Unmarshal([]byte(s.Files["/etc/cni/net.d/10-testbed.conflist"]), &cni); err != nil {
		t.Fatal(err)
	}
	if got := cni.Plugins[0].IPAM.Ranges[0][0].Subnet; got != n.pods {
		t.Errorf("pods are in %s, want %s", got, n.pods)
	}
	for file, want := range map[string]string{
		"/etc/hosts":                  n.nodeIP + " " + nodeName,
		"/state/conf/kubelet.yaml":    "clusterDNS: [" + n.nodeIP + "]",
		"/state/conf/kube-proxy.yaml": "clusterCIDR: " + n.pods,
		"/state/conf/containerd.toml": `sandbox_image = "` + pauseImage + `"`,
	} {
		if !strings.Contains(s.Files[file], want) {
			t.Errorf("%s is %q, want %q in it", file, s.Files[file], want)
		}
		if strings.Contains(s.Files[file], "%!") {
			t.Errorf("%s is badly formatted: %q", file, s.Files[file])
		}
	}
	// What is private below an overlay has to come after it, and all of it
	// needs a name of its own below the root.
	seen := map[string]bool{}
	for _, d := range s.Private {
		if !filepath.IsAbs(d) || seen[d] {
			t.Errorf("private directory %q", d)
		}
		seen[d] = true
	}
}
