// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"kubevirtbmc.dev/test/cluster/internal/node"
)

// upAPI brings up level api. It needs no rights.
func (c *Cluster) upAPI(ctx context.Context, o Options, bin binaries, j *journal, log *progress) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("etcd"); err != nil {
		return fmt.Errorf("%w: install the Debian packages of packages.txt", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l, err := startLauncher(bin.path("node"), o.Dir, "node", j, node.Launch{}, cancel)
	if err != nil {
		return err
	}
	defer l.close()
	keys := filepath.Join(o.Dir, "pki")
	loopback := net.IPv4(127, 0, 0, 1)
	server := fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	if _, err := pki(keys, c.Kubeconfig, server, firstAddress(apiServices), loopback); err != nil {
		return err
	}
	apiserver := append([]string{
		bin.path("kube-apiserver"), "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
		// Without a controller manager no namespace gets its service account.
		"--disable-admission-plugins=ServiceAccount", "--authorization-mode=RBAC",
	}, apiserverArgs(keys, ports[1], apiServices)...)
	if err := l.run(node.Spec{Daemons: daemons(filepath.Join(o.Dir, "log"),
		etcdArgs(filepath.Join(o.Dir, "etcd"), ports[1], ports[2]),
		apiserver,
	)}); err != nil {
		return err
	}
	if err := c.waitReady(ctx); err != nil {
		return err
	}
	log.step("the API server is ready")
	if err := c.applyCRDs(ctx, bin); err != nil {
		return err
	}
	log.step("KubeVirt's custom resource definitions are established")
	return nil
}

// apiServices is the range of service addresses at level api, where nothing
// listens on them.
const apiServices = "10.96.0.0/16"

// waitReady waits until the API server says that it is ready.
func (c *Cluster) waitReady(ctx context.Context) error {
	return poll(ctx, "API server", 3*time.Minute, 200*time.Millisecond, func(ctx context.Context) error {
		_, err := c.output(ctx, "get", "--raw", "/readyz")
		return err
	})
}

// applyCRDs installs KubeVirt's CRDs and waits until all are established.
func (c *Cluster) applyCRDs(ctx context.Context, bin binaries) error {
	crds, err := output(command(ctx, bin.path("manifests"), "-part", "crds"))
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, []byte(crds)); err != nil {
		return err
	}
	return c.waitEstablished(ctx, "crd", "--all")
}

// waitEstablished waits until custom resource definitions are served. kubectl
// gives up on one that has no status yet, so it is asked again.
func (c *Cluster) waitEstablished(ctx context.Context, which ...string) error {
	return poll(ctx, "custom resource definitions", time.Minute, 500*time.Millisecond, func(ctx context.Context) error {
		_, err := c.output(ctx, append([]string{"wait", "--for=condition=Established", "--timeout=60s"}, which...)...)
		return err
	})
}

// etcdArgs is etcd's command line. Its data need not survive a power cut.
func etcdArgs(dir string, client, peer int) []string {
	url := fmt.Sprintf("http://127.0.0.1:%d", client)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", peer)
	return []string{
		"etcd", "--data-dir", dir, "--unsafe-no-fsync",
		"--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default=" + peerURL,
	}
}

// apiserverArgs is the part of kube-apiserver's command line that all levels
// share.
func apiserverArgs(keys string, etcd int, services string) []string {
	in := func(name string) string { return filepath.Join(keys, name) }
	return []string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", etcd),
		"--tls-cert-file=" + in("apiserver.crt"), "--tls-private-key-file=" + in("apiserver.key"),
		"--client-ca-file=" + in("ca.crt"),
		"--service-account-key-file=" + in("sa.pub"), "--service-account-signing-key-file=" + in("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-cluster-ip-range=" + services,
		"--allow-privileged=true", "--profiling=false",
		// virt-api trusts calls that come through the front proxy.
		"--requestheader-client-ca-file=" + in("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + in("front-proxy-client.crt"), "--proxy-client-key-file=" + in("front-proxy-client.key"),
	}
}

// daemons turns command lines into daemons that log to files named after them,
// in the directory logs.
func daemons(logs string, args ...[]string) []node.Daemon {
	var list []node.Daemon
	for _, a := range args {
		name := filepath.Base(a[0])
		list = append(list, node.Daemon{Name: name, Args: a, Log: filepath.Join(logs, name+".log")})
	}
	return list
}

// launcher is a started node program that waits for what to run.
type launcher struct {
	stdin *os.File
	// pid is the process to run things next to: the first one of the new
	// namespaces where there are such.
	pid int
}

// startLauncher starts the node program, which logs under the given name, records
// it, and lets it go. If we die before run, its standard input closes and it ends.
// Its own end is told to ended, with what it said.
func startLauncher(binary, dir, name string, j *journal, l node.Launch, ended context.CancelCauseFunc) (*launcher, error) {
	if err := os.MkdirAll(filepath.Join(dir, "log"), 0o755); err != nil {
		return nil, err
	}
	stderr, err := os.Create(filepath.Join(dir, "log", name+".log"))
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer inRead.Close()
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		inWrite.Close()
		return nil, err
	}
	defer outRead.Close()
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), markerEnv+"="+j.id)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inRead, outWrite, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt is for us alone
	err = cmd.Start()
	outWrite.Close()
	if err != nil {
		inWrite.Close()
		return nil, err
	}
	go func() {
		err := cmd.Wait() // also so that it does not stay a zombie while we live
		text, _ := os.ReadFile(stderr.Name())
		ended(fmt.Errorf("the node program ended: %w: %s", err, lastLines(string(text), 3)))
	}()
	if err := j.recordProcess(cmd.Process.Pid); err != nil {
		inWrite.Close()
		return nil, err
	}
	started := &launcher{stdin: inWrite}
	line, err := node.Line(l)
	if err == nil {
		_, err = inWrite.Write(line)
	}
	if err == nil {
		line, err1 := bufio.NewReader(outRead).ReadString('\n')
		if err1 != nil {
			text, _ := os.ReadFile(stderr.Name())
			err = fmt.Errorf("start the node program: %w: %s", err1, lastLines(string(text), 3))
		} else {
			started.pid, err = strconv.Atoi(strings.TrimSpace(line))
		}
	}
	if err == nil && started.pid != cmd.Process.Pid {
		err = j.recordProcess(started.pid)
	}
	if err != nil {
		inWrite.Close()
		return nil, err
	}
	return started, nil
}

// run says what to run.
func (l *launcher) run(s node.Spec) error {
	line, err := node.Line(s)
	if err != nil {
		return err
	}
	_, err = l.stdin.Write(line)
	return errors.Join(err, l.close())
}

// close closes the program's standard input, which ends it unless it was told
// what to run.
func (l *launcher) close() error {
	if l.stdin == nil {
		return nil
	}
	err := l.stdin.Close()
	l.stdin = nil
	return err
}

// freePorts returns n TCP ports of loopback that nothing listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all at the end, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
