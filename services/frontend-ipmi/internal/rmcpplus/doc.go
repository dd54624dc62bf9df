// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package rmcpplus reads and writes what follows the RMCP header of an IPMI
// datagram: the session header of IPMI v1.5 and of v2.0 (RMCP+), the messages
// that open a session, and the integrity and confidentiality of its packets.
// Section numbers are those of the IPMI v2.0 specification, revision 1.1. All
// numbers are little endian.
//
// A v1.5 packet (section 13.6), of which only the unauthenticated form outside
// of a session is known here:
//
//	0          1..4      5..8        9       10..
//	auth type  sequence  session id  length  payload
//	00h        0         0
//
// A v2.0 packet (section 13.6, table 13-8):
//
//	0       1                   2..5        6..9      10..11  12..
//	format  payload type        session id  sequence  length  payload
//	06h     bit 7 encrypted
//	        bit 6 authenticated
//
// and when it is authenticated, after the payload:
//
//	pad     pad length  next header  authentication code
//	FFh..   1 byte      07h          12 or 16 bytes
//
// The code covers everything from the format byte to the next header, which the
// pad makes a multiple of four bytes. An encrypted payload (section 13.29) is
//
//	0..15  16..
//	IV     AES-CBC-128 of: payload, 01h 02h .., number of those pad bytes
package rmcpplus
