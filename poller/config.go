package poller

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// finalBytesMax is what Close may queue beyond the outbox's bound, so that a close frame with its reason still fits
	// behind a full outbox.
	finalBytesMax = 4 << 10
	// discardBytesMax is how much of what a hung-up peer goes on to send is read, so that a flood costs no more than this.
	discardBytesMax = 1 << 20
	// tickMin keeps the 32-bit ticks of the wheel from running round within weeks.
	tickMin = time.Millisecond
)

// withDefaults fills what the zero value leaves open.
func (c Config) withDefaults() Config {
	orInt(&c.Loops, runtime.GOMAXPROCS(0))
	orInt(&c.Connections, 1_000_000)
	orInt(&c.ReadBytes, 16<<10)
	orInt(&c.LeftoverBytes, 128<<10)
	orInt(&c.OutboxBytes, 256<<10)
	orInt(&c.SendBuffer, 64<<10)
	orInt(&c.Reserve, 256)
	orDuration(&c.WriteTimeout, 10*time.Second)
	orDuration(&c.HandshakeTimeout, 5*time.Second)
	orDuration(&c.Linger, 500*time.Millisecond)
	orDuration(&c.Tick, 50*time.Millisecond)
	c.Tick = max(c.Tick, tickMin)
	return c
}

func orInt(v *int, d int) {
	if *v == 0 {
		*v = d
	}
}

func orDuration(v *time.Duration, d time.Duration) {
	if *v == 0 {
		*v = d
	}
}

// check names the field that cannot be.
func (c Config) check() error {
	for _, f := range []struct {
		name string
		v    int
	}{{"Loops", c.Loops}, {"Connections", c.Connections}, {"ReadBytes", c.ReadBytes}, {"LeftoverBytes", c.LeftoverBytes},
		{"OutboxBytes", c.OutboxBytes}, {"SendBuffer", c.SendBuffer}, {"Reserve", c.Reserve}} {
		if f.v < 0 {
			return fmt.Errorf("poller: %s is %d, must not be negative", f.name, f.v)
		}
	}
	for _, f := range []struct {
		name string
		v    time.Duration
	}{{"WriteTimeout", c.WriteTimeout}, {"HandshakeTimeout", c.HandshakeTimeout}, {"Linger", c.Linger}} {
		if f.v < 0 {
			return fmt.Errorf("poller: %s is %v, must not be negative", f.name, f.v)
		}
	}
	return nil
}

// clamp bounds the connections by the process's descriptor limit less the reserve.
func (c Config) clamp() (Config, error) {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return c, fmt.Errorf("poller: descriptor limit: %w", err)
	}
	if lim.Cur <= uint64(c.Reserve) {
		return c, fmt.Errorf("poller: descriptor limit %d leaves no connection after a reserve of %d", lim.Cur, c.Reserve)
	}
	if room := lim.Cur - uint64(c.Reserve); uint64(c.Connections) > room {
		c.Connections = int(room)
	}
	return c, nil
}
