package client_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/client"
	"github.com/sluice-im/sluice/client/clienttest"
)

// piped makes a gateway behind pipes, so that time in a synctest bubble stands still while anything moves.
func piped(t *testing.T) (g *clienttest.Gateway, change func(*client.Config)) {
	g = clienttest.New(t, "tcp")
	return g, func(c *client.Config) {
		c.ReconnectMin, c.ReconnectMax = client.Default().ReconnectMin, client.Default().ReconnectMax
		c.Dial = func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			g.Serve(there)
			return here, nil
		}
	}
}

func within(t *testing.T, what string, got, low, high time.Duration) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s after %v, want %v to %v", what, got, low, high)
	}
}

func TestResendTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, change := piped(t)
		begin := time.Now()
		var at []time.Duration
		g.Decide(func(_ string, cmd *clientv1.Command) clienttest.Fate {
			if cmd.Type == clientv1.CommandType_MESSAGEUP {
				at = append(at, time.Since(begin))
				return clienttest.Ignore
			}
			return clienttest.Handle
		})
		a := start(t, g.URL, "alice", change)
		o := a.send(client.Draft{To: "bob"})
		<-o.Done()
		_, err := a.wait(o)
		var failed *client.FailedError
		if !errors.As(err, &failed) || failed.Reason != "timeout" {
			t.Errorf("outcome: %v", err)
		}
		if len(at) != 4 {
			t.Fatalf("sent at %v", at)
		}
		within(t, "first resend", at[1]-at[0], 5*time.Second, 6250*time.Millisecond)
		within(t, "second resend", at[2]-at[1], 10*time.Second, 12500*time.Millisecond)
		within(t, "third resend", at[3]-at[2], 20*time.Second, 25*time.Second)
		within(t, "failure", time.Since(begin)-at[3], 40*time.Second, 50*time.Second)
		if drafts := a.Failed(); len(drafts) != 1 || drafts[0].UUID != o.UUID() || drafts[0].Reason != "timeout" {
			t.Errorf("drafts: %+v", drafts)
		}
		// By hand, once the server is well again.
		g.Decide(nil)
		if _, err := a.wait(a.send(drafted(a, o))); err != nil {
			t.Error(err)
		}
		if len(a.Failed()) != 0 || a.Discard(o.UUID()) {
			t.Error("a stored message is still a draft")
		}
	})
}

func drafted(a *app, o *client.Outgoing) client.Draft {
	for _, d := range a.Failed() {
		if d.UUID == o.UUID() {
			return d.Draft
		}
	}
	return client.Draft{}
}

// TestGiveUp: a server that always says RETRY gets the message for GiveUp, with pauses, and not for ever.
func TestGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, change := piped(t)
		sends := 0
		g.Decide(func(_ string, cmd *clientv1.Command) clienttest.Fate {
			if cmd.Type == clientv1.CommandType_MESSAGEUP {
				sends++
				return clienttest.Retry
			}
			return clienttest.Handle
		})
		a := start(t, g.URL, "alice", change)
		begin := time.Now()
		o := a.send(client.Draft{To: "bob"})
		<-o.Done()
		var failed *client.FailedError
		if _, err := a.wait(o); !errors.As(err, &failed) || failed.Reason != "no_backend" {
			t.Errorf("outcome: %v", err)
		}
		within(t, "failure", time.Since(begin), time.Minute, 68*time.Second)
		if sends < 10 || sends > 25 {
			t.Errorf("sent %d times in a minute", sends)
		}
	})
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, change := piped(t)
		var count counter
		g.Decide(count.decide)
		a := start(t, g.URL, "alice", change)
		a.connected()
		time.Sleep(5 * time.Minute) // The bubble's clock: it costs nothing.
		synctest.Wait()
		if n := count.of(clientv1.CommandType_HEARTBEAT); n < 9 || n > 10 {
			t.Errorf("%d heartbeats in 5 minutes of 30 s", n)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, e := range a.connections {
			if e.State == client.Disconnected {
				t.Errorf("%+v", e)
			}
		}
	})
}

// TestSilentServer: a connection that no longer answers is left, at the latest one heartbeat and its timeout later.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, change := piped(t)
		var left atomic.Bool
		g.Decide(func(_ string, cmd *clientv1.Command) clienttest.Fate {
			if !left.Load() && cmd.Type != clientv1.CommandType_SYNC {
				return clienttest.Ignore
			}
			return clienttest.Handle
		})
		begin := time.Now()
		a := start(t, g.URL, "alice", change)
		a.until("left", func() bool {
			for _, e := range a.connections {
				if e.State == client.Disconnected {
					return true
				}
			}
			return false
		})
		within(t, "disconnect", time.Since(begin), 40*time.Second, 42*time.Second)
		left.Store(true)
		if _, err := a.wait(a.send(client.Draft{To: "bob"})); err != nil {
			t.Error(err)
		}
	})
}

// TestUnansweredMessageProbes: an overdue answer is reason enough to ask at once whether the connection lives.
func TestUnansweredMessageProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, change := piped(t)
		g.SetHeartbeat(time.Hour)
		var alive atomic.Bool
		g.Decide(func(_ string, cmd *clientv1.Command) clienttest.Fate {
			if !alive.Load() && cmd.Type != clientv1.CommandType_SYNC {
				return clienttest.Ignore
			}
			return clienttest.Handle
		})
		a := start(t, g.URL, "alice", change)
		a.connected()
		begin := time.Now()
		o := a.send(client.Draft{To: "bob"})
		a.until("left", func() bool {
			return a.connections[len(a.connections)-1].State == client.Disconnected
		})
		within(t, "disconnect", time.Since(begin), 15*time.Second, 18*time.Second)
		alive.Store(true)
		if _, err := a.wait(o); err != nil {
			t.Error(err)
		}
	})
}

// TestBackoff: attempts get rarer up to ReconnectMax, at random moments.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, change := piped(t)
		var at []time.Time
		a := start(t, "tcp://gateway:1", "alice", func(c *client.Config) {
			change(c)
			c.Dial = func(context.Context, string, string) (net.Conn, error) {
				at = append(at, time.Now())
				return nil, errors.New("refused")
			}
		})
		begin := time.Now()
		time.Sleep(time.Hour) // The bubble's clock: it costs nothing.
		synctest.Wait()
		a.stop()
		synctest.Wait()
		// About 15 s on average.
		if len(at) < 150 || len(at) > 400 {
			t.Errorf("%d attempts in an hour", len(at))
		}
		if len(at) > 3 {
			within(t, "the second attempt", at[1].Sub(begin), 0, time.Second)
		}
		for i := 1; i < len(at); i++ {
			within(t, "an attempt", at[i].Sub(at[i-1]), 0, 31*time.Second)
		}
	})
}
