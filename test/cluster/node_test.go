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
		for _, p := range []netip.Prefix{services, netip.MustParsePrefix(n.pods), netip.MustParsePrefix(n.nodes[0].link), netip.MustParsePrefix(n.nodes[1].link)} {
			if at := slices.IndexFunc(seen, p.Overlaps); at >= 0 {
				t.Errorf("cluster %d: %s overlaps %s", i, p, seen[at])
			}
			seen = append(seen, p)
		}
		var pods []netip.Prefix
		for _, node := range n.nodes {
			link, of := netip.MustParsePrefix(node.link), netip.MustParsePrefix(node.pods)
			if !link.Contains(netip.MustParseAddr(node.ip)) || !link.Contains(netip.MustParseAddr(node.gateway)) || node.ip == node.gateway {
				t.Errorf("cluster %d: a node has %s and the gateway %s, on a link of %s", i, node.ip, node.gateway, link)
			}
			if !netip.MustParsePrefix(n.pods).Contains(of.Addr()) || slices.ContainsFunc(pods, of.Overlaps) {
				t.Errorf("cluster %d: the pods of a node are in %s, those of all in %s", i, of, n.pods)
			}
			pods = append(pods, of)
		}
		if n.hostIP != n.nodes[0].gateway {
			t.Errorf("cluster %d: the first node's gateway is %s, the host %s", i, n.nodes[0].gateway, n.hostIP)
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
	for i, want := range []struct {
		logs    string
		daemons []string
	}{
		{"/state/log/", []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "dns", "containerd", "kubelet", "kube-proxy"}},
		{"/state/log/node-2/", []string{"containerd", "kubelet", "kube-proxy"}},
	} {
		name := nodeName(i)
		t.Run(name, func(t *testing.T) {
			s := nodeSpec("/state", bin, n, i, "Gate=false")
			var names []string
			for _, d := range s.Daemons {
				names = append(names, d.Name)
				if want := want.logs + d.Name + ".log"; d.Log != want {
					t.Errorf("%s logs to %s, want %s", d.Name, d.Log, want)
				}
				if gated := slices.Contains(d.Args, "--feature-gates=Gate=false"); gated != (d.Name == "kube-apiserver" || d.Name == "kubelet") {
					t.Errorf("%s is told of the gates: %t", d.Name, gated)
				}
			}
			if !slices.Equal(names, want.daemons) {
				t.Errorf("daemons %q, want %q", names, want.daemons)
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
			if got := cni.Plugins[0].IPAM.Ranges[0][0].Subnet; got != n.nodes[i].pods {
				t.Errorf("pods are in %s, want %s", got, n.nodes[i].pods)
			}
			for file, want := range map[string]string{
				"/etc/hosts":                               n.nodes[0].ip + " node-1\n" + n.nodes[1].ip + " node-2\n",
				"/state/conf/" + name + "/kubelet.yaml":    "clusterDNS: [" + n.nodeIP() + "]",
				"/state/conf/" + name + "/kube-proxy.yaml": "clusterCIDR: " + n.pods + "\nhostnameOverride: " + name,
				"/state/conf/" + name + "/containerd.toml": `sandbox_image = "` + pauseImage + `"`,
			} {
				if !strings.Contains(s.Files[file], want) {
					t.Errorf("%s is %q, want %q in it", file, s.Files[file], want)
				}
				if strings.Contains(s.Files[file], "%!") {
					t.Errorf("%s is badly formatted: %q", file, s.Files[file])
				}
			}
			if s.Hostname != name || s.Root != "/state/root/"+name {
				t.Errorf("the node is %s below %s", s.Hostname, s.Root)
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
		})
	}
}
