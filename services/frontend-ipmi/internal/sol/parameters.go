// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package sol

import (
	"encoding/binary"
	"sync"
	"time"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/ipmi"
)

// SOL configuration parameters (table 26-5).
const (
	parameterSetInProgress  = 0
	parameterEnable         = 1
	parameterAuthentication = 2
	parameterAccumulate     = 3
	parameterRetry          = 4
	parameterBitRate        = 5
	parameterVolatileRate   = 6
	parameterChannel        = 7
	parameterPort           = 8
)

// Values of parameters.
const (
	setComplete    = 0
	setInProgress  = 1
	setCommitWrite = 2

	enableBit              = 0x01
	forceEncryptionBit     = 0x80
	forceAuthenticationBit = 0x40
	privilegeMask          = 0x0F
	retryCountMask         = 0x07

	accumulateUnit = 5 * time.Millisecond
	retryUnit      = 10 * time.Millisecond

	rateMask   = 0x0F
	rateLowest = 0x06 // 9600 bit/s.
	rate115200 = 0x0A

	lanChannel = 1
)

// Timing of a Link.
type Timing struct {
	// Accumulate is how long output waits for more of it, Threshold how many
	// characters do not wait.
	Accumulate time.Duration
	Threshold  int
	// RetryCount is how often a packet is sent again, RetryInterval after how
	// long without acknowledgement.
	RetryCount    int
	RetryInterval time.Duration
}

// Parameters are the SOL configuration parameters of one BMC. What a client
// writes lasts as long as the frontend serves the BMC. Encryption and
// authentication can't be switched off. Use NewParameters.
type Parameters struct {
	mu            sync.Mutex
	progressBy    uint32 // Session that is setting parameters; 0: none.
	disabled      bool
	privilege     ipmi.Privilege
	accumulate    byte // In accumulateUnit.
	threshold     byte
	retryCount    byte
	retryInterval byte // In retryUnit.
	rate          byte
	volatileRate  byte
}

// NewParameters returns the parameters that a BMC begins with: on, for OPERATOR
// and above. Lost packets are sent again seven times within 2 s, so that an
// interruption of that length loses nothing. The bit rate is that of the real
// thing; a virtual serial port has none.
func NewParameters() *Parameters {
	return &Parameters{
		privilege: ipmi.PrivilegeOperator, accumulate: 2, threshold: PayloadSize - headerSize,
		retryCount: 7, retryInterval: 25, rate: rate115200, volatileRate: rate115200,
	}
}

// Enabled tells whether SOL may be activated.
func (p *Parameters) Enabled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.disabled
}

// Privilege returns the level that activating SOL needs.
func (p *Parameters) Privilege() ipmi.Privilege {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.privilege
}

// Timing returns what a Link that begins now has.
func (p *Parameters) Timing() Timing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Timing{
		Accumulate: time.Duration(p.accumulate) * accumulateUnit, Threshold: int(p.threshold),
		RetryCount: int(p.retryCount), RetryInterval: time.Duration(p.retryInterval) * retryUnit,
	}
}

// SessionEnded completes what a session had in progress.
func (p *Parameters) SessionEnded(id uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.progressBy == id {
		p.progressBy = 0
	}
}

// Get returns a parameter's data; false when there is no such parameter. The
// port is that which clients use.
func (p *Parameters) Get(parameter byte, port uint16) ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch parameter {
	case parameterSetInProgress:
		if p.progressBy != 0 {
			return []byte{setInProgress}, true
		}
		return []byte{setComplete}, true
	case parameterEnable:
		if p.disabled {
			return []byte{0}, true
		}
		return []byte{enableBit}, true
	case parameterAuthentication:
		return []byte{forceEncryptionBit | forceAuthenticationBit | byte(p.privilege)}, true
	case parameterAccumulate:
		return []byte{p.accumulate, p.threshold}, true
	case parameterRetry:
		return []byte{p.retryCount, p.retryInterval}, true
	case parameterBitRate:
		return []byte{p.rate}, true
	case parameterVolatileRate:
		return []byte{p.volatileRate}, true
	case parameterChannel:
		return []byte{lanChannel}, true
	case parameterPort:
		return binary.LittleEndian.AppendUint16(nil, port), true
	}
	return nil, false
}

// sizes are those of the parameters that can be set.
var sizes = map[byte]int{
	parameterSetInProgress: 1, parameterEnable: 1, parameterAuthentication: 1, parameterAccumulate: 2,
	parameterRetry: 2, parameterBitRate: 1, parameterVolatileRate: 1,
}

// Set changes a parameter for a session.
func (p *Parameters) Set(session uint32, parameter byte, data []byte) ipmi.CompletionCode {
	size, known := sizes[parameter]
	switch {
	case parameter == parameterChannel, parameter == parameterPort:
		return ipmi.ParameterReadOnly
	case !known:
		return ipmi.ParameterNotSupported
	case len(data) != size:
		return ipmi.InvalidLength
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch parameter {
	case parameterSetInProgress:
		return p.setProgress(session, data[0])
	case parameterEnable:
		p.disabled = data[0]&enableBit == 0
	case parameterAuthentication:
		return p.setAuthentication(data[0])
	case parameterAccumulate:
		if data[0] == 0 || data[1] > PayloadSize-headerSize {
			return ipmi.ParameterOutOfRange
		}
		p.accumulate, p.threshold = data[0], data[1]
	case parameterRetry:
		p.retryCount, p.retryInterval = data[0]&retryCountMask, data[1]
	case parameterBitRate, parameterVolatileRate:
		rate := data[0] & rateMask
		if rate != 0 && (rate < rateLowest || rate > rate115200) { // 0: as the serial port has it.
			return ipmi.ParameterOutOfRange
		}
		if parameter == parameterBitRate {
			p.rate = rate
		} else {
			p.volatileRate = rate
		}
	}
	return ipmi.OK
}

// setProgress begins or ends a change. What is written counts at once: there is
// nothing to commit.
func (p *Parameters) setProgress(session uint32, state byte) ipmi.CompletionCode {
	switch state & 0x03 {
	case setComplete:
		p.progressBy = 0
	case setInProgress:
		if p.progressBy != 0 && p.progressBy != session {
			return ipmi.SetAlreadyInProgress
		}
		p.progressBy = session
	case setCommitWrite:
	default:
		return ipmi.InvalidDataField
	}
	return ipmi.OK
}

func (p *Parameters) setAuthentication(b byte) ipmi.CompletionCode {
	privilege := ipmi.Privilege(b & privilegeMask)
	switch {
	case b&forceEncryptionBit == 0, b&forceAuthenticationBit == 0,
		privilege < ipmi.PrivilegeOperator, privilege > ipmi.PrivilegeAdministrator:
		// Guests print secrets: what may not be had otherwise is not had here.
		return ipmi.InvalidDataField
	}
	p.privilege = privilege
	return ipmi.OK
}
