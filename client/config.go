package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/client/internal/core"
)

// LoginBy is how the token reaches the gateway.
type LoginBy string

const (
	// LoginByCommand sends the token in the LOGIN command. It works on every transport, and keeps the token out of what
	// proxies log.
	LoginByCommand LoginBy = "command"
	// LoginByHeader sends it as Authorization header of the WebSocket upgrade, so that a proxy or the gateway can refuse
	// before there is a connection. ws and wss only.
	LoginByHeader LoginBy = "header"
)

// Config is everything a Client is told. Start from Default.
type Config struct {
	// URL is where the gateway listens: ws://host[:port]/path, wss://…, tcp://host:port or tls://host:port.
	URL string
	// Token is the credential of the first login. Empty: TokenSource is asked.
	Token string
	// TokenSource gives a new token when there is none, or when the gateway says that the last one has expired. It may
	// block for TokenTimeout at most. Without it an expired token ends the client.
	TokenSource func(ctx context.Context) (string, error)
	LoginBy     LoginBy
	// DeviceID tells the user's devices apart. Empty: the gateway makes one, which is kept while the client runs.
	DeviceID string
	// Platform is shown to operators and applications: ios, web, bot …
	Platform string

	// Queue keeps what is not yet settled, Watermarks how far every conversation was received. Nil: in memory, so that
	// both end with the process. Run closes both.
	Queue      Queue
	Watermarks Watermarks
	Handlers   Handlers

	// TLS is for wss and tls; nil = the system's roots and the URL's host name.
	TLS *tls.Config
	// Dial opens the network connection; nil = net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log takes what an application cannot act on; nil = nothing is logged.
	Log *slog.Logger

	// QueueMax bounds the unsettled messages; beyond it Send returns ErrQueueFull. 1 to 100,000.
	QueueMax int
	// ResendTimeout is how long an answer may take before round trips were measured; afterwards the measured time holds,
	// at least 2 s or ResendTimeout if that is less. Each further resend waits twice as long.
	ResendTimeout time.Duration
	// Resends is how often a message without answer is sent again before it is FAILED. 0 to 10.
	Resends int
	// GiveUp is how long a message may be answered RETRY, counted while connected.
	GiveUp time.Duration

	// ConnectTimeout bounds dial, upgrade and login together.
	ConnectTimeout time.Duration
	TokenTimeout   time.Duration
	// HeartbeatTimeout is how long the answer to a heartbeat may take before the connection counts as dead.
	HeartbeatTimeout time.Duration
	// WriteTimeout is how long a write may stall before the connection counts as dead.
	WriteTimeout time.Duration
	// The n-th attempt to reconnect waits a random time between 0 and min(ReconnectMin × 2^n, ReconnectMax).
	ReconnectMin, ReconnectMax time.Duration
	// EventsMax is how many callbacks may wait; beyond it nothing more is read until the application has caught up.
	EventsMax int
}

// Default is the time budgets of the protocol, to which URL and Token are to be added.
func Default() Config {
	c := core.Default()
	return Config{
		LoginBy:          LoginByCommand,
		QueueMax:         c.QueueMax,
		ResendTimeout:    c.Timeout,
		Resends:          c.Resends,
		GiveUp:           c.GiveUp,
		ConnectTimeout:   10 * time.Second,
		TokenTimeout:     10 * time.Second,
		HeartbeatTimeout: 10 * time.Second,
		WriteTimeout:     10 * time.Second,
		ReconnectMin:     500 * time.Millisecond,
		ReconnectMax:     30 * time.Second,
		// At 1 KiB a message this is about 1 MiB of messages that the application has not looked at.
		EventsMax: 1024,
	}
}

// Validate names the first field that cannot work, its value, and what is allowed.
func (c *Config) Validate() error {
	t, err := parseTarget(c.URL)
	switch {
	case err != nil:
		return err
	case c.Token == "" && c.TokenSource == nil:
		return errors.New("client: Token is empty and there is no TokenSource: one of them is needed")
	case c.LoginBy != LoginByCommand && c.LoginBy != LoginByHeader:
		return fmt.Errorf("client: LoginBy is %q: command or header", c.LoginBy)
	case c.LoginBy == LoginByHeader && !t.websocket:
		return fmt.Errorf("client: LoginBy is header with %s: only ws and wss have one", c.URL)
	case c.DeviceID != "" && !ident.ValidUID(c.DeviceID):
		return fmt.Errorf("client: DeviceID is %q: 1 to %d characters of A-Z a-z 0-9 _ . @ -", c.DeviceID, ident.UIDBytesMax)
	case c.QueueMax < 1 || c.QueueMax > 100_000:
		return fmt.Errorf("client: QueueMax is %d: 1 to 100,000", c.QueueMax)
	case c.Resends < 0 || c.Resends > 10:
		return fmt.Errorf("client: Resends is %d: 0 to 10", c.Resends)
	case c.EventsMax < 1:
		return fmt.Errorf("client: EventsMax is %d: at least 1", c.EventsMax)
	case c.ReconnectMax < c.ReconnectMin:
		return fmt.Errorf("client: ReconnectMax is %v: at least ReconnectMin, %v", c.ReconnectMax, c.ReconnectMin)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"ResendTimeout", c.ResendTimeout}, {"GiveUp", c.GiveUp}, {"ConnectTimeout", c.ConnectTimeout},
		{"TokenTimeout", c.TokenTimeout}, {"HeartbeatTimeout", c.HeartbeatTimeout}, {"WriteTimeout", c.WriteTimeout},
		{"ReconnectMin", c.ReconnectMin},
	} {
		if d.value < time.Millisecond || d.value > time.Hour {
			return fmt.Errorf("client: %s is %v: 1ms to 1h", d.name, d.value)
		}
	}
	return nil
}

// core is the machine's part of the configuration.
func (c *Config) core() core.Config {
	m := core.Default()
	m.QueueMax, m.Timeout, m.Resends, m.GiveUp = c.QueueMax, c.ResendTimeout, c.Resends, c.GiveUp
	return m
}
