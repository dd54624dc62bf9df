// SPDX-FileCopyrightText: The KubeVirtBMC Authors
// SPDX-License-Identifier: Apache-2.0

package watchdog_test

import (
	"encoding/hex"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kubevirtbmc.dev/services/frontend-ipmi/internal/watchdog"
)

// bench is a timer on a machine that runs, in a bubble of simulated time.
type bench struct {
	*testing.T
	timer *watchdog.Timer
	// mu is for what follows.
	mu      sync.Mutex
	machine watchdog.Machine
	// due are the times that have come and count.
	due []watchdog.Expiry
}

func bubble(t *testing.T, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{T: t, machine: watchdog.Machine{On: true, Instance: "first"}}
		b.timer = &watchdog.Timer{Due: func(e watchdog.Expiry) {
			go func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				if e, counts := b.timer.Expire(e, time.Now(), b.machine); counts {
					b.due = append(b.due, e)
				}
			}()
		}}
		f(b)
		b.timer.Close()
	})
}

func (b *bench) set(data string, want error) {
	b.Helper()
	raw, err := hex.DecodeString(data)
	if err != nil {
		b.Fatal(err)
	}
	if err := b.timer.Set(raw, time.Now(), b.machine); !errors.Is(err, want) {
		b.Fatalf("set %s: %v, want %v", data, err, want)
	}
}

func (b *bench) reset(want error) {
	b.Helper()
	if err := b.timer.Reset(time.Now(), b.machine); !errors.Is(err, want) {
		b.Fatalf("reset: %v, want %v", err, want)
	}
}

func (b *bench) get(want string) {
	b.Helper()
	if got := hex.EncodeToString(b.timer.Get(time.Now(), b.machine)); got != want {
		b.Fatalf("timer is %s, want %s", got, want)
	}
}

func (b *bench) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) times(want int) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.due) != want {
		b.Fatalf("%d times have come, want %d: %+v", len(b.due), want, b.due)
	}
}

func (b *bench) come(n int) watchdog.Expiry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.due[n]
}

func TestTimer_countdown(t *testing.T) {
	t.Parallel()
	bubble(t, func(b *bench) {
		b.get("0000000000000000")
		b.reset(watchdog.ErrUninitialized)
		b.set("04030000"+"6400", nil) // SMS/OS, power cycle, 10 s.
		b.get("0403000064006400")
		b.after(time.Minute) // Set alone starts nothing.
		b.times(0)
		b.reset(nil)
		b.get("4403000064006400")
		b.after(9 * time.Second)
		b.get("4403000064000a00")
		b.reset(nil)
		b.after(9950 * time.Millisecond)
		b.get("4403000064000100")
		b.times(0)
		b.after(50 * time.Millisecond)
		b.times(1)
		if e := b.come(0); e.PreTimeout || e.Action != watchdog.ActionPowerCycle || e.Use != 4 {
			b.Errorf("what has come: %+v", e)
		}
		b.get("0403001064000000") // Stopped at 0, the flag of SMS/OS is set.
		b.after(time.Hour)
		b.times(1)
		b.reset(nil)
		b.get("4403001064006400") // The flag stays until it is cleared.
		b.set("04030010"+"6400", nil)
		b.get("0403000064006400")
		b.after(time.Hour)
		b.times(1)
	})
}

func TestTimer_atOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(b *bench) {
		b.set("05010000"+"0000", nil)
		b.reset(nil)
		b.after(0)
		b.times(1)
		b.get("0501002000000000")
	})
}

func TestTimer_preTimeout(t *testing.T) {
	t.Parallel()
	bubble(t, func(b *bench) {
		b.set("04310300"+"6400", nil)
		b.reset(nil)
		b.after(7 * time.Second)
		b.times(1)
		if !b.come(0).PreTimeout || b.come(0).Interrupt != 3 {
			b.Errorf("what has come: %+v", b.come(0))
		}
		b.reset(watchdog.ErrTooLate)
		b.get("4431030064001e00")
		b.after(3 * time.Second)
		b.times(2)
		if b.come(1).PreTimeout {
			b.Errorf("what has come: %+v", b.come(1))
		}
		b.reset(nil)
		b.after(8 * time.Second)
		b.times(3)
		b.set("44310300"+"6400", nil) // Goes on, from the beginning.
		b.after(6 * time.Second)
		b.times(3)
		b.reset(nil)
		b.set("04310300"+"6400", nil) // Stops.
		b.after(time.Hour)
		b.times(3)
	})
}

func TestTimer_dontStop(t *testing.T) {
	t.Parallel()
	bubble(t, func(b *bench) {
		b.set("44010000"+"6400", nil) // Stopped, and so it stays.
		b.after(time.Hour)
		b.times(0)
		b.reset(nil)
		b.after(9 * time.Second)
		b.set("43020000"+"c800", nil)
		b.get("43020000c800c800")
		b.after(19 * time.Second)
		b.times(0)
		b.after(time.Second)
		b.times(1)
		if b.come(0).Action != watchdog.ActionPowerDown || b.come(0).Use != 3 {
			b.Errorf("what has come: %+v", b.come(0))
		}
	})
}

// A machine that goes off stops the timer, and its flags stay.
func TestTimer_powerDown(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*watchdog.Machine){
		"off":        func(m *watchdog.Machine) { m.On = false },
		"off and on": func(m *watchdog.Machine) { m.Instance = "second" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(b *bench) {
				b.set("04010000"+"0000", nil)
				b.reset(nil)
				b.after(0)
				b.times(1)
				b.set("04010000"+"6400", nil)
				b.reset(nil)
				b.after(4 * time.Second)
				b.mu.Lock()
				change(&b.machine)
				b.mu.Unlock()
				b.after(time.Minute)
				b.times(1)
				b.get("0401001064000000")
				if b.machine.On {
					b.reset(nil)
					b.after(time.Minute)
					b.times(2)
				} else {
					b.reset(watchdog.ErrOff)
				}
			})
		})
	}
}

// Not to log counts until the machine is reset or the time has come.
func TestTimer_dontLog(t *testing.T) {
	t.Parallel()
	bubble(t, func(b *bench) {
		b.set("84000000"+"0a00", nil)
		b.reset(nil)
		b.get("c40000000a000a00")
		b.after(time.Second)
		b.times(1)
		if !b.come(0).DontLog {
			b.Error("it is to be logged")
		}
		b.get("040000100a000000")
		b.set("84000000"+"6400", nil)
		b.reset(nil)
		b.after(time.Second)
		b.mu.Lock()
		b.machine.Reset = time.Now()
		b.mu.Unlock()
		b.get("4400001064005a00")
	})
}

func TestTimer_invalid(t *testing.T) {
	t.Parallel()
	bubble(t, func(b *bench) {
		for _, data := range []string{
			"00010000" + "6400", "06010000" + "6400", "07010000" + "6400", // No such use.
			"04040000" + "6400", "04070000" + "6400", // No such action.
			"04110000" + "6400", "04210000" + "6400", "04410000" + "6400", // No such interrupt.
			"04310b00" + "6400", // An interrupt before the start.
			"0401000064", "",
		} {
			b.set(data, watchdog.ErrInvalid)
		}
		b.get("0000000000000000")
		b.set("04310a00"+"6400", nil)
		b.set("0401ff00"+"6400", nil) // Without an interrupt its time means nothing.
	})
}

func TestTimer_close(t *testing.T) {
	t.Parallel()
	bubble(t, func(b *bench) {
		b.set("04010000"+"6400", nil)
		b.reset(nil)
		b.timer.Close()
		b.after(time.Hour)
		b.times(0)
		b.set("04010000"+"6400", nil)
		b.reset(nil)
		b.after(time.Hour)
		b.times(0)
	})
}

// FuzzTimer: whatever commands come, the countdown is never above what was set, and
// each start is followed by at most one time-out.
func FuzzTimer(f *testing.F) {
	f.Add([]byte{1, 4, 1, 0, 0, 100, 0, 0, 2, 9})
	f.Add([]byte{1, 4, 0x31, 3, 0, 100, 0, 0, 2, 80, 0, 2, 30})
	f.Fuzz(func(t *testing.T, script []byte) {
		script = script[:min(len(script), 200)]
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex // Of the machine.
			starts, ends := 0, 0
			m := watchdog.Machine{On: true, Instance: "first"}
			timer := &watchdog.Timer{}
			timer.Due = func(e watchdog.Expiry) {
				go func() {
					mu.Lock()
					defer mu.Unlock()
					if e, counts := timer.Expire(e, time.Now(), m); counts && !e.PreTimeout {
						ends++
					}
				}()
			}
			defer timer.Close()
			for len(script) > 0 {
				verb := script[0]
				script = script[1:]
				switch verb % 4 {
				case 0:
					if timer.Reset(time.Now(), m) == nil {
						starts++
					}
				case 1:
					n := min(6, len(script))
					if timer.Set(script[:n], time.Now(), m) == nil && timer.Running() {
						starts++
					}
					script = script[n:]
				case 2:
					if len(script) > 0 {
						time.Sleep(time.Duration(script[0]) * watchdog.Count)
						script = script[1:]
					}
					synctest.Wait()
				case 3:
					mu.Lock()
					m.On = !m.On
					mu.Unlock()
				}
				now := timer.Get(time.Now(), m)
				if len(now) != 8 {
					t.Fatalf("%d bytes", len(now))
				}
				if set, left := int(now[4])|int(now[5])<<8, int(now[6])|int(now[7])<<8; left > set {
					t.Fatalf("%d of %d are left", left, set)
				}
			}
			time.Sleep(3 * time.Hour)
			synctest.Wait()
			if ends > starts {
				t.Fatalf("%d time-outs of %d starts", ends, starts)
			}
		})
	})
}
