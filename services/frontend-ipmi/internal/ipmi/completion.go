// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package ipmi

import "fmt"

// CompletionCode is the outcome of a command (IPMI v2.0 table 5-2).
type CompletionCode byte

// Completion codes that every command may answer with.
const (
	OK                    CompletionCode = 0x00
	NodeBusy              CompletionCode = 0xC0
	InvalidCommand        CompletionCode = 0xC1
	InvalidForLUN         CompletionCode = 0xC2
	Timeout               CompletionCode = 0xC3
	ReservationCanceled   CompletionCode = 0xC5
	InvalidLength         CompletionCode = 0xC7
	ParameterOutOfRange   CompletionCode = 0xC9
	CannotReturnThatMuch  CompletionCode = 0xCA
	RecordNotPresent      CompletionCode = 0xCB
	InvalidDataField      CompletionCode = 0xCC
	IllegalForRecord      CompletionCode = 0xCD
	ResponseNotProvided   CompletionCode = 0xCE
	DestinationNotThere   CompletionCode = 0xD3
	InsufficientPrivilege CompletionCode = 0xD4
	NotInPresentState     CompletionCode = 0xD5
	SubFunctionDisabled   CompletionCode = 0xD6
	Unspecified           CompletionCode = 0xFF
)

// Completion codes that single commands give a meaning of their own.
const (
	// Get and Set System Boot Options (IPMI v2.0 sections 28.12, 28.13).
	ParameterNotSupported CompletionCode = 0x80
	SetAlreadyInProgress  CompletionCode = 0x81
	ParameterReadOnly     CompletionCode = 0x82
	// Reset Watchdog Timer (IPMI v2.0 section 27.5).
	WatchdogUninitialized CompletionCode = 0x80
	// Set Session Privilege Level (IPMI v2.0 section 22.18).
	LevelNotAvailable CompletionCode = 0x80
	LevelExceedsLimit CompletionCode = 0x81
	// Close Session (IPMI v2.0 section 22.19).
	InvalidSessionID CompletionCode = 0x87
	// Activate Payload (IPMI v2.0 section 24.1).
	PayloadActiveElsewhere    CompletionCode = 0x80
	PayloadDisabled           CompletionCode = 0x81
	PayloadLimitReached       CompletionCode = 0x82
	PayloadNeedsEncryption    CompletionCode = 0x84
	PayloadAlreadyDeactivated CompletionCode = 0x80 // Deactivate Payload (section 24.2).
	PayloadNotOnChannel       CompletionCode = 0x80 // Get Channel Payload Version (section 24.9).
	// Suspend/Resume Payload Encryption (IPMI v2.0 section 24.3).
	OperationNotSupported CompletionCode = 0x80
	OperationNotAllowed   CompletionCode = 0x81
	InstanceNotActive     CompletionCode = 0x83
)

// String returns the code as two hexadecimal digits.
func (c CompletionCode) String() string { return fmt.Sprintf("%02x", byte(c)) }
