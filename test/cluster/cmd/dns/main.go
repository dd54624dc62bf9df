// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The KubeVirtBMC Authors

// Command dns is the DNS server of a test cluster's pods.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"

	"kubevirtbmc.dev/test/cluster/internal/dns"
)

func main() {
	listen := flag.String("listen", "", "address to listen on")
	server := flag.String("server", "", "URL of the API server")
	ca := flag.String("ca", "", "file with the API server's certificate authority")
	cert := flag.String("cert", "", "file with our certificate")
	key := flag.String("key", "", "file with its private key")
	flag.Parse()
	if err := run(*listen, *server, *ca, *cert, *key); err != nil {
		fmt.Fprintln(os.Stderr, "dns:", err)
		os.Exit(1)
	}
}

func run(listen, server, ca, cert, key string) error {
	services, err := dns.NewServices(server, ca, cert, key)
	if err != nil {
		return err
	}
	conn, err := net.ListenPacket("udp", listen)
	if err != nil {
		return err
	}
	defer conn.Close()
	return dns.Serve(conn, services)
}
