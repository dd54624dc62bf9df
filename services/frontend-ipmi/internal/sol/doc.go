// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

// Package sol has the payload of serial over LAN and the state of one of its
// instances. It knows no sockets and no clock: callers pass the time, and a lock
// of theirs guards each Link. Section numbers are those of the IPMI v2.0
// specification, revision 1.1.
//
// A SOL payload (section 15.9, table 15-2):
//
//	0         1                   2               3                4..
//	sequence  acknowledged        characters of   operation, or    characters,
//	1 to 15   sequence, 0: none   it that were    status from the  at most 255
//	0: none                       accepted        BMC
//
// Both sides have one packet with a sequence number under way at a time, and
// send it again, unchanged, until it is acknowledged (section 15.11). A packet
// without one carries an acknowledgement alone and is not acknowledged.
package sol
