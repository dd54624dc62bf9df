// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
)

// Console is the serial console of a virtual machine, as KubeVirt's API offers
// it. Reading gives what the guest sends, writing is typing.
type Console struct {
	conn   net.Conn
	reader *bufio.Reader
	proxy  *exec.Cmd
	cancel context.CancelFunc
	// left is what remains of the current frame.
	left int64

	write sync.Mutex
}

// OpenConsole connects to the console of a VirtualMachineInstance that runs.
// It goes through kubectl, which knows how to authenticate. The end of the
// context closes it.
func (c *Cluster) OpenConsole(ctx context.Context, namespace, name string) (*Console, error) {
	ctx, cancel := context.WithCancel(ctx)
	con := &Console{cancel: cancel, proxy: c.Kubectl(ctx, "proxy", "--port=0", "--address=127.0.0.1")}
	address, err := startProxy(con.proxy)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open console of %s/%s: %w", namespace, name, err)
	}
	if err := con.connect(ctx, address, "/apis/subresources.kubevirt.io/v1/namespaces/"+namespace+"/virtualmachineinstances/"+name+"/console"); err != nil {
		con.Close()
		return nil, fmt.Errorf("open console of %s/%s: %w", namespace, name, err)
	}
	context.AfterFunc(ctx, func() { con.conn.Close() })
	return con, nil
}

// startProxy starts kubectl proxy and returns where it listens.
func startProxy(cmd *exec.Cmd) (string, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return "", fmt.Errorf("kubectl proxy: %w: %s", err, stderr.String())
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "Starting to serve on ")), nil
}

// connect opens a websocket.
func (con *Console) connect(ctx context.Context, address, path string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	con.conn, con.reader = conn, bufio.NewReader(conn)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return err
	}
	key := make([]byte, 16)
	rand.Read(key)
	for k, v := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": base64.StdEncoding.EncodeToString(key), "Sec-WebSocket-Protocol": "plain.kubevirt.io",
	} {
		r.Header.Set(k, v)
	}
	if err := r.Write(conn); err != nil {
		return err
	}
	resp, err := http.ReadResponse(con.reader, r) //nolint:bodyclose // An upgraded connection has no body.
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
	return nil
}

// Opcodes of websocket frames (RFC 6455, section 5.2).
const (
	opBinary = 2
	opClose  = 8
	opPing   = 9
	opPong   = 10
)

// Read reads what the guest sends. It returns io.EOF when the other side
// closes the console.
func (con *Console) Read(p []byte) (int, error) {
	for con.left == 0 {
		op, size, err := con.frame()
		if err != nil {
			return 0, err
		}
		switch op {
		case opClose:
			return 0, io.EOF
		case opPing, opPong:
			b := make([]byte, size)
			if _, err := io.ReadFull(con.reader, b); err != nil {
				return 0, err
			}
			if op == opPing {
				if err := con.send(opPong, b); err != nil {
					return 0, err
				}
			}
		default:
			con.left = size
		}
	}
	n, err := con.reader.Read(p[:min(int64(len(p)), con.left)])
	con.left -= int64(n)
	return n, err
}

// frame reads a frame's header. A server's frames are not masked.
func (con *Console) frame() (op byte, size int64, err error) {
	var h [8]byte
	if _, err := io.ReadFull(con.reader, h[:2]); err != nil {
		return 0, 0, err
	}
	op, size = h[0]&0x0f, int64(h[1]&0x7f)
	if h[1]&0x80 != 0 {
		return 0, 0, errors.New("websocket: the server sent a masked frame")
	}
	switch size {
	case 126:
		_, err = io.ReadFull(con.reader, h[:2])
		size = int64(binary.BigEndian.Uint16(h[:2]))
	case 127:
		_, err = io.ReadFull(con.reader, h[:8])
		size = int64(binary.BigEndian.Uint64(h[:8]) &^ (1 << 63))
	}
	return op, size, err
}

// Write types p.
func (con *Console) Write(p []byte) (int, error) {
	for at := 0; at < len(p); at += maxFrame {
		if err := con.send(opBinary, p[at:min(len(p), at+maxFrame)]); err != nil {
			return at, err
		}
	}
	return len(p), nil
}

// maxFrame is the longest payload whose length fits into the second byte.
const maxFrame = 125

// send sends one frame of at most maxFrame bytes, masked as a client has to.
func (con *Console) send(op byte, p []byte) error {
	con.write.Lock()
	defer con.write.Unlock()
	f := make([]byte, 6, 6+len(p))
	f[0], f[1] = 0x80|op, 0x80|byte(len(p))
	rand.Read(f[2:6])
	for i, b := range p {
		f = append(f, b^f[2+i%4])
	}
	_, err := con.conn.Write(f)
	return err
}

// Close closes the console.
func (con *Console) Close() error {
	if con.conn != nil {
		con.conn.Close()
	}
	con.cancel()
	con.proxy.Wait() // its error is that it was ended
	return nil
}
