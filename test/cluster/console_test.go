// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

package cluster

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
)

func TestConsole_Read(t *testing.T) {
	long := strings.Repeat("x", 300)
	client, server := net.Pipe()
	con := &Console{conn: client, reader: bufio.NewReader(client)}
	pong := make(chan []byte, 1)
	go func() {
		server.Write([]byte{0x82, 2, 'h', 'i'})
		server.Write([]byte{0x89, 1, 'p'})
		b := make([]byte, 7)
		io.ReadFull(server, b)
		pong <- b
		server.Write(append([]byte{0x82, 126, 300 >> 8, 300 & 0xff}, long...))
		server.Write([]byte{0x88, 0})
	}()
	got, err := io.ReadAll(con)
	if err != nil {
		t.Fatal(err)
	}
	if want := "hi" + long; string(got) != want {
		t.Errorf("read %q, want %q", got, want)
	}
	b := <-pong
	if b[0] != 0x8a || b[1] != 0x81 || b[6]^b[2] != 'p' {
		t.Errorf("answered the ping with % x, want a masked pong with the same payload", b)
	}
}

func TestConsole_Write_splits_what_is_too_long_for_a_frame(t *testing.T) {
	client, server := net.Pipe()
	con := &Console{conn: client, reader: bufio.NewReader(client)}
	text := bytes.Repeat([]byte("abc"), 100)
	go func() {
		con.Write(text)
		client.Close()
	}()
	var got []byte
	for {
		h := make([]byte, 6)
		if _, err := io.ReadFull(server, h); err != nil {
			break
		}
		p := make([]byte, h[1]&0x7f)
		if _, err := io.ReadFull(server, p); err != nil {
			t.Fatal(err)
		}
		for i := range p {
			p[i] ^= h[2+i%4]
		}
		got = append(got, p...)
	}
	if !bytes.Equal(got, text) {
		t.Errorf("the server received %q, want %q", got, text)
	}
}
