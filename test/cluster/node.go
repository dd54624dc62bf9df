// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubevirtbmc.dev/test/cluster/internal/node"
)

// maxNodes is how many nodes a cluster can have.
const maxNodes = 2

// nodeName is the name of node i. The control plane is on node 0.
func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

// Directories of the host that a node sees but cannot change, and those that
// it has for itself.
var (
	overlaid = []string{"/etc", "/opt", "/var/lib", "/var/log"}
	private  = []string{"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/lib/kubevirt", "/var/lib/etcd", "/var/log/pods", "/var/log/containers", "/etc/cni/net.d"}
)

// controllers are the cgroup v1 controllers that kubelet and runc work with.
var controllers = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"}

// network holds the addresses of one of several clusters on a machine. The
// host is linked to the first node, and that to the second one, for which it
// routes: so nothing has to be forwarded by the host.
type network struct {
	// link is the host's end of its link.
	link string
	// hostIP is its address there.
	hostIP string
	// nodes are the nodes' own.
	nodes [maxNodes]nodeNetwork
	// pods and services are ranges.
	pods, services string
}

// nodeNetwork holds the addresses of a node.
type nodeNetwork struct {
	// ip is the node's address on the link to its gateway, which is that link's
	// other end. They are in the range link.
	ip, gateway, link string
	// pods is the range of its pods.
	pods string
}

// maxClusters is how many clusters with a node fit on a machine.
const maxClusters = 16

// newNetwork returns the addresses of cluster i.
func newNetwork(i int) network {
	n := network{
		link:     fmt.Sprintf("kvbmc%d", i),
		hostIP:   fmt.Sprintf("10.99.%d.1", i),
		pods:     fmt.Sprintf("10.245.%d.0/23", i*maxNodes),
		services: fmt.Sprintf("10.96.%d.0/20", i*16),
	}
	for node := range n.nodes {
		first := node * 128
		n.nodes[node] = nodeNetwork{
			ip:      fmt.Sprintf("10.99.%d.%d", i, first+2),
			gateway: fmt.Sprintf("10.99.%d.%d", i, first+1),
			link:    fmt.Sprintf("10.99.%d.%d/25", i, first),
			pods:    fmt.Sprintf("10.245.%d.0/24", i*maxNodes+node),
		}
	}
	return n
}

// nodeIP is the address of the first node, where the control plane listens.
func (n network) nodeIP() string { return n.nodes[0].ip }

// firstAddress is the first usable address of a range: of the services, that
// of the API server.
func firstAddress(cidr string) net.IP {
	ip, _, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err) // all ranges are our own constants
	}
	ip = ip.To4()
	ip[3]++
	return ip
}

// checkHost tells what a node needs and this machine lacks.
func checkHost() error {
	var errs []error
	if os.Geteuid() != 0 {
		errs = append(errs, errors.New("a node needs root"))
	}
	for _, p := range []string{"etcd", "containerd", "ctr", "runc", "iptables", "conntrack", "ip", "nsenter"} {
		if _, err := lookPath(p); err != nil {
			errs = append(errs, fmt.Errorf("program %s is missing: install the Debian packages of packages.txt", p))
		}
	}
	if _, err := os.Stat("/usr/lib/cni/bridge"); err != nil {
		errs = append(errs, errors.New("/usr/lib/cni/bridge is missing: install containernetworking-plugins"))
	}
	if _, err := ownCgroups(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// sbin is searched besides PATH, since users' shells often leave it out.
const sbin = "/usr/local/sbin:/usr/sbin:/sbin"

// lookPath is exec.LookPath that also finds administrators' programs.
func lookPath(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	for _, d := range filepath.SplitList(sbin) {
		if p, err := exec.LookPath(filepath.Join(d, name)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// ownCgroups maps each controller to the directory of the cgroup that we are
// in.
func ownCgroups() (map[string]string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	own := parseCgroups(string(b))
	for _, c := range controllers {
		if _, err := os.Stat(own[c]); own[c] == "" || err != nil {
			return nil, fmt.Errorf("cgroup v1 controller %s is not mounted below /sys/fs/cgroup; a host with cgroup v2 alone is not supported", c)
		}
	}
	return own, nil
}

// parseCgroups reads /proc/self/cgroup: lines of number:controllers:path.
func parseCgroups(s string) map[string]string {
	own := map[string]string{}
	for line := range strings.Lines(s) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			c = strings.TrimPrefix(c, "name=")
			own[c] = filepath.Join("/sys/fs/cgroup", c, f[2])
		}
	}
	return own
}

// makeCgroups makes a cgroup of our own for each controller, for the node of
// that name. Each is recorded before it is made.
func makeCgroups(j *journal, name string) ([]string, error) {
	own, err := ownCgroups()
	if err != nil {
		return nil, err
	}
	var made []string
	for _, c := range controllers {
		dir := filepath.Join(own[c], "kubevirtbmc-"+j.id+"-"+name)
		if slices.Contains(made, dir) {
			continue
		}
		if err := j.record(entry{Cgroup: dir}); err != nil {
			return nil, err
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		if c == "cpuset" { // starts empty, and then admits no process
			for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
				b, err := os.ReadFile(filepath.Join(own[c], name))
				if err != nil {
					return nil, err
				}
				if err := os.WriteFile(filepath.Join(dir, name), b, 0); err != nil {
					return nil, err
				}
			}
		}
		made = append(made, dir)
	}
	return made, nil
}

// connect makes the link between the host and the network namespace of pid,
// and routes to pods and services. The name of the host's end decides between
// clusters that come up at the same time, and its hardware address tells Down
// that it is ours. Link and routes go with the network namespace at the latest.
func connect(ctx context.Context, pid int, id string) (network, error) {
	var n network
	for i := 0; ; i++ {
		if i == maxClusters {
			return n, fmt.Errorf("all %d address ranges are in use", maxClusters)
		}
		n = newNetwork(i)
		err := ip(ctx, 0, fmt.Sprintf("link add %s address %s type veth peer name eth0 netns %d", n.link, linkAddress(id), pid))
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "File exists") {
			return n, err
		}
	}
	if err := ip(ctx, 0,
		"addr add "+n.hostIP+"/25 dev "+n.link,
		"link set "+n.link+" up",
		"route add "+n.pods+" via "+n.nodeIP(),
		"route add "+n.services+" via "+n.nodeIP(),
		"route add "+n.nodes[1].link+" via "+n.nodeIP(),
	); err != nil {
		return n, err
	}
	return n, attach(ctx, pid, n.nodes[0])
}

// attach sets up a node's end of the link to its gateway.
func attach(ctx context.Context, pid int, n nodeNetwork) error {
	return ip(ctx, pid,
		"link set lo up",
		"addr add "+n.ip+"/25 dev eth0",
		"link set eth0 up",
		"route add default via "+n.gateway,
	)
}

// join links a second node to the first one, which becomes its gateway. All of
// it is inside of their namespaces.
func join(ctx context.Context, first, second int, n network) error {
	name, its := nodeName(1), n.nodes[1]
	if err := ip(ctx, first,
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", name, second),
		"addr add "+its.gateway+"/25 dev "+name,
		"link set "+name+" up",
		"route add "+its.pods+" via "+its.ip,
	); err != nil {
		return err
	}
	return attach(ctx, second, its)
}

// ip runs ip once for each list of arguments, in the network namespace of a
// process, or in our own if pid is 0.
func ip(ctx context.Context, pid int, args ...string) error {
	path, err := lookPath("ip")
	if err != nil {
		return err
	}
	for _, a := range args {
		cmd := command(ctx, path, strings.Fields(a)...)
		if pid != 0 {
			cmd = command(ctx, "nsenter", append([]string{"-t", strconv.Itoa(pid), "-n", path}, strings.Fields(a)...)...)
		}
		if _, err := output(cmd); err != nil {
			return err
		}
	}
	return nil
}

// upNode brings up the levels that have nodes.
func (c *Cluster) upNode(ctx context.Context, o Options, bin binaries, j *journal, log *progress) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var launchers []*launcher
	for i := range o.Nodes {
		cgroups, err := makeCgroups(j, nodeName(i))
		if err != nil {
			return err
		}
		l, err := startLauncher(bin.path("node"), o.Dir, nodeName(i), j, node.Launch{Cgroups: cgroups, Namespaces: true}, cancel)
		if err != nil {
			return err
		}
		defer l.close() // for all of them if something fails, else they are closed
		launchers = append(launchers, l)
		c.NodePIDs = append(c.NodePIDs, l.pid)
	}
	n, err := connect(ctx, c.NodePIDs[0], j.id)
	if err != nil {
		return err
	}
	if o.Nodes > 1 {
		if err := join(ctx, c.NodePIDs[0], c.NodePIDs[1], n); err != nil {
			return err
		}
	}
	c.NodeIP, c.HostIP = n.nodeIP(), n.hostIP
	keys, server := filepath.Join(o.Dir, "pki"), "https://"+n.nodeIP()+":6443"
	ca, err := pki(keys, c.Kubeconfig, server, firstAddress(n.services), net.ParseIP(n.nodeIP()), net.ParseIP(n.hostIP))
	if err != nil {
		return err
	}
	for i, l := range launchers {
		if err := nodePKI(ca, keys, server, nodeName(i), net.ParseIP(n.nodes[i].ip)); err != nil {
			return err
		}
		if err := l.run(nodeSpec(o.Dir, bin, n, i, kubeVirtPins[o.KubeVirtVersion].gates)); err != nil {
			return err
		}
	}
	if err := c.waitReady(ctx); err != nil {
		return err
	}
	log.step("the API server is ready")
	if err := c.Apply(ctx, []byte(bindings)); err != nil {
		return err
	}
	if err := c.waitContainerd(ctx); err != nil {
		return err
	}
	if err := c.loadImages(ctx, o, bin); err != nil {
		return err
	}
	log.step("images are loaded")
	for i := range o.Nodes {
		if err := c.waitNode(ctx, nodeName(i)); err != nil {
			return err
		}
	}
	// KubeVirt's own programs, but for virt-handler, run on control plane nodes only.
	if _, err := c.output(ctx, "label", "node", nodeName(0), "node-role.kubernetes.io/control-plane=", "--overwrite"); err != nil {
		return err
	}
	log.step("all nodes are ready: %d", o.Nodes)
	return c.installKubeVirt(ctx, o, bin, log)
}

// waitNode waits until a node is ready.
func (c *Cluster) waitNode(ctx context.Context, name string) error {
	return poll(ctx, name, 3*time.Minute, 300*time.Millisecond, func(ctx context.Context) error {
		s, err := c.output(ctx, "get", "node", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && s != "True" {
			err = fmt.Errorf("%s is not ready (%q)", name, s)
		}
		return err
	})
}

// bindings let kube-proxy and our DNS server read what they need.
const bindings = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kube-proxy}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-proxier"}
subjects: [{kind: User, name: "system:kube-proxy"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: testbed-dns}
rules:
- {apiGroups: [""], resources: [services], verbs: [list]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: testbed-dns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: testbed-dns}
subjects: [{kind: User, name: "system:kube-dns"}]
`

// nodeSpec says what node i consists of; gates are Kubernetes' feature gates.
func nodeSpec(dir string, bin binaries, n network, i int, gates string) node.Spec {
	name, its := nodeName(i), n.nodes[i]
	keys, root, conf, logs := filepath.Join(dir, "pki"), filepath.Join(dir, "root", name), filepath.Join(dir, "conf", name), filepath.Join(dir, "log")
	kubelet := []string{
		bin.path("kubelet"), "--config=" + filepath.Join(conf, "kubelet.yaml"), "--kubeconfig=" + filepath.Join(keys, "kubelet-"+name+".kubeconfig"),
		"--hostname-override=" + name, "--node-ip=" + its.ip, "--root-dir=/var/lib/kubelet", "--v=2",
	}
	if gates != "" {
		kubelet = append(kubelet, "--feature-gates="+gates)
	}
	commands := [][]string{
		{"containerd", "--config", filepath.Join(conf, "containerd.toml")},
		kubelet,
		{bin.path("kube-proxy"), "--config=" + filepath.Join(conf, "kube-proxy.yaml")},
	}
	if i == 0 {
		commands = append(controlPlane(keys, bin, n, gates), commands...)
	} else {
		logs = filepath.Join(logs, name)
	}
	return node.Spec{
		Hostname: name, Root: root, Overlaid: overlaid, Private: private, Controllers: controllers,
		Path: os.Getenv("PATH") + ":" + sbin,
		Sysctls: map[string]string{
			"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/route_localnet": "1", "net/bridge/bridge-nf-call-iptables": "1",
		},
		Files: map[string]string{
			"/etc/hosts":                           hosts(n),
			"/etc/resolv.conf":                     "nameserver " + n.nodeIP() + "\n",
			"/etc/cni/net.d/10-testbed.conflist":   cniConfig(its.pods),
			filepath.Join(conf, "containerd.toml"): containerdConfig(),
			filepath.Join(conf, "kubelet.yaml"):    kubeletConfig(keys, name, filepath.Join(root, "volumeplugins"), n.nodeIP()),
			filepath.Join(conf, "kube-proxy.yaml"): proxyConfig(filepath.Join(keys, "proxy.kubeconfig"), name, n.pods),
		},
		Daemons: daemons(logs, commands...),
	}
}

// hosts is a file of hosts' names. The API server knows a node by its name.
func hosts(n network) string {
	text := "127.0.0.1 localhost\n"
	for i, node := range n.nodes {
		text += node.ip + " " + nodeName(i) + "\n"
	}
	return text
}

// controlPlane is the command lines of what runs on the first node alone.
func controlPlane(keys string, bin binaries, n network, gates string) [][]string {
	apiserver := append([]string{
		bin.path("kube-apiserver"), "--bind-address=0.0.0.0", "--secure-port=6443", "--advertise-address=" + n.nodeIP(),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + filepath.Join(keys, "apiserver-kubelet.crt"), "--kubelet-client-key=" + filepath.Join(keys, "apiserver-kubelet.key"),
		"--kubelet-certificate-authority=" + filepath.Join(keys, "ca.crt"),
		// It reaches aggregated API servers at their pods' addresses.
		"--enable-aggregator-routing=true",
	}, apiserverArgs(keys, 2379, n.services)...)
	if gates != "" {
		apiserver = append(apiserver, "--feature-gates="+gates)
	}
	kubeconfig := func(name string) []string {
		path := filepath.Join(keys, name+".kubeconfig")
		return []string{"--kubeconfig=" + path, "--authentication-kubeconfig=" + path, "--authorization-kubeconfig=" + path, "--leader-elect=false", "--bind-address=127.0.0.1"}
	}
	manager := append([]string{
		bin.path("kube-controller-manager"),
		"--service-account-private-key-file=" + filepath.Join(keys, "sa.key"), "--root-ca-file=" + filepath.Join(keys, "ca.crt"), "--use-service-account-credentials=true",
		"--cluster-signing-cert-file=" + filepath.Join(keys, "ca.crt"), "--cluster-signing-key-file=" + filepath.Join(keys, "ca.key"),
		// The nodes' ranges of pods are in their network's configuration.
		"--allocate-node-cidrs=false", "--service-cluster-ip-range=" + n.services,
	}, kubeconfig("controller-manager")...)
	return [][]string{
		etcdArgs("/var/lib/etcd/testbed", 2379, 2380),
		apiserver,
		manager,
		append([]string{bin.path("kube-scheduler")}, kubeconfig("scheduler")...),
		{bin.path("dns"), "-listen=" + n.nodeIP() + ":53", "-server=https://127.0.0.1:6443", "-ca=" + filepath.Join(keys, "ca.crt"), "-cert=" + filepath.Join(keys, "dns.crt"), "-key=" + filepath.Join(keys, "dns.key")},
	}
}

// containerdConfig is containerd's configuration.
func containerdConfig() string {
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  # Without CAP_SYS_RESOURCE nobody may lower the value that it starts with, and
  # no pod would start.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
`, pauseImage)
}

// cniConfig is the network of a node's pods: a bridge that routes, without
// masquerading.
func cniConfig(pods string) string {
	return fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "testbed", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "promiscMode": false,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, pods)
}

// kubeletConfig is kubelet's configuration. Its disk accounting stays on: with
// localStorageCapacityIsolation off, virt-launcher pods stay pending.
func kubeletConfig(keys, name, plugins, dns string) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[1]s/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: %[1]s/kubelet-serving-%[2]s.crt
tlsPrivateKeyFile: %[1]s/kubelet-serving-%[2]s.key
cgroupDriver: cgroupfs
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [%[4]s]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, imagefs.available: 1%%, nodefs.inodesFree: 1%%}
staticPodPath: ""
protectKernelDefaults: false
volumePluginDir: %[3]s
`, keys, name, plugins, dns)
}

// proxyConfig is kube-proxy's configuration. It leaves alone the limits of
// connection tracking, which belong to the host.
func proxyConfig(kubeconfig, name, pods string) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: %s
hostnameOverride: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
metricsBindAddress: 127.0.0.1:10249
`, pods, name, kubeconfig)
}

// inNode returns a command that runs inside the node whose first process is pid.
func inNode(ctx context.Context, pid int, args ...string) *exec.Cmd {
	return command(ctx, "nsenter", append([]string{"-t", strconv.Itoa(pid), "-a"}, args...)...)
}

// waitContainerd waits until containerd answers on all nodes.
func (c *Cluster) waitContainerd(ctx context.Context) error {
	return poll(ctx, "containerd", time.Minute, 200*time.Millisecond, func(ctx context.Context) error {
		for _, pid := range c.NodePIDs {
			if _, err := output(inNode(ctx, pid, "ctr", "version")); err != nil {
				return err
			}
		}
		return nil
	})
}
