package client_test

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"testing"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/client"
	"github.com/sluice-im/sluice/client/clienttest"
	"github.com/sluice-im/sluice/internal/testenv/certs"
)

func TestConversation(t *testing.T) {
	for _, scheme := range []string{"ws", "tcp", "wss", "tls"} {
		t.Run(scheme, func(t *testing.T) {
			g := clienttest.Listen(t, scheme, certs.New(t).Issue(t, "gateway").Pair(t))
			alice := start(t, g.URL, "alice", nil)
			bob := start(t, g.URL, "bob", nil)
			converse(t, g, alice, bob, 100)
		})
	}
}

// TestConnectionsBreakMidMessage: connections break before a message is carried out and before its answer leaves, answers
// say RETRY, confirmations are lost; nothing is lost or doubled for all that.
func TestConnectionsBreakMidMessage(t *testing.T) {
	for _, scheme := range []string{"ws", "tcp"} {
		t.Run(scheme, func(t *testing.T) {
			g := clienttest.Listen(t, scheme, certs.New(t).Issue(t, "gateway").Pair(t))
			g.SetPage(3)
			rnd := mathrand.New(mathrand.NewPCG(1, 2))
			g.Decide(func(_ string, cmd *clientv1.Command) clienttest.Fate {
				switch n := rnd.IntN(20); {
				case n == 0:
					return clienttest.CutBefore
				case n == 1:
					return clienttest.CutAfter
				case n == 2 && cmd.Type == clientv1.CommandType_MESSAGEUP:
					return clienttest.Retry
				default:
					return clienttest.Handle
				}
			})
			alice := start(t, g.URL, "alice", nil)
			bob := start(t, g.URL, "bob", nil)
			converse(t, g, alice, bob, 100)
		})
	}
}

func TestKickIsFinal(t *testing.T) {
	g := clienttest.Listen(t, "ws")
	g.Decide(func(_ string, cmd *clientv1.Command) clienttest.Fate {
		if cmd.Type == clientv1.CommandType_MESSAGEUP {
			return clienttest.Kick
		}
		return clienttest.Handle
	})
	queue := &client.MemoryQueue{}
	a := start(t, g.URL, "alice", func(c *client.Config) { c.Queue = queue })
	o := a.send(client.Draft{UUID: "u1", To: "bob"})
	if _, err := a.wait(o); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Wait: %v", err)
	}
	var ending *client.Ending
	if err := <-a.end; !errors.As(err, &ending) || ending.Reason != "displaced" || !ending.Final() {
		t.Errorf("Run: %v", err)
	}
	last := a.connections[len(a.connections)-1]
	if last.State != client.Closed || last.Reason != "displaced" || last.Code != 4501 {
		t.Errorf("last event: %+v", last)
	}
	if left, _ := queue.Load(); len(left) != 1 || left[0].UUID != "u1" {
		t.Errorf("queue: %+v", left)
	}
	if _, err := a.Send(client.Draft{To: "bob"}); !errors.Is(err, client.ErrClosed) {
		t.Errorf("Send: %v", err)
	}
	if err := a.Run(t.Context()); !errors.Is(err, client.ErrRunning) {
		t.Errorf("second Run: %v", err)
	}
}

func TestTokens(t *testing.T) {
	source := func(token string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return token, nil }
	}
	for _, c := range []struct {
		name, scheme string
		by           client.LoginBy
		token        string
		source       func(context.Context) (string, error)
		reason       string
	}{
		{"expired, renewed", "tcp", client.LoginByCommand, "expired", source("token-alice"), ""},
		{"expired at the upgrade, renewed", "ws", client.LoginByHeader, "expired", source("token-alice"), ""},
		{"none, asked for", "ws", client.LoginByCommand, "", source("token-alice"), ""},
		{"good, by header", "ws", client.LoginByHeader, "token-alice", nil, ""},
		{"expired, and no other", "ws", client.LoginByCommand, "expired", nil, "token_expired"},
		{"bad", "tcp", client.LoginByCommand, "nonsense", nil, "bad_token"},
		{"bad at the upgrade", "ws", client.LoginByHeader, "nonsense", nil, "bad_token"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := clienttest.Listen(t, c.scheme)
			a := start(t, g.URL, "alice", func(cfg *client.Config) {
				cfg.Token, cfg.TokenSource, cfg.LoginBy = c.token, c.source, c.by
			})
			if c.reason == "" {
				a.connected()
				return
			}
			var ending *client.Ending
			if err := <-a.end; !errors.As(err, &ending) || ending.Reason != c.reason {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

// TestReconnectIsMadeBeforeBreak: told to go elsewhere, the client has the next connection before it gives up the old.
func TestReconnectIsMadeBeforeBreak(t *testing.T) {
	g := clienttest.Listen(t, "ws")
	asked := false
	g.Decide(func(_ string, cmd *clientv1.Command) clienttest.Fate {
		if cmd.Type == clientv1.CommandType_MESSAGEUP && !asked {
			asked = true
			return clienttest.Reconnect
		}
		return clienttest.Handle
	})
	a := start(t, g.URL, "alice", nil)
	if _, err := a.wait(a.send(client.Draft{To: "bob"})); err != nil {
		t.Fatal(err)
	}
	a.until("second connection", func() bool {
		n := 0
		for _, e := range a.connections {
			if e.State == client.Connected {
				n++
			}
			if e.State == client.Disconnected {
				t.Fatalf("disconnected in between: %+v", e)
			}
		}
		return n == 2
	})
	if _, err := a.wait(a.send(client.Draft{To: "bob"})); err != nil {
		t.Fatal(err)
	}
	logins := g.Logins()
	if logins[0].SessionId == "" || logins[0].SessionId != logins[1].SessionId {
		t.Errorf("sessions: %q, %q", logins[0].SessionId, logins[1].SessionId)
	}
	if logins[1].DeviceId != clienttest.DeviceMade {
		t.Errorf("the device that the gateway made is not kept: %q", logins[1].DeviceId)
	}
}

// TestSlowApplication: while the application is busy nothing is lost, and what waits is bounded.
func TestSlowApplication(t *testing.T) {
	g := clienttest.Listen(t, "tcp")
	release := make(chan struct{})
	bob := start(t, g.URL, "bob", func(c *client.Config) {
		c.EventsMax = 2
		next := c.Handlers.OnMessage
		c.Handlers.OnMessage = func(m client.Message) {
			<-release
			next(m)
		}
	})
	bob.connected()
	alice := start(t, g.URL, "alice", nil)
	const n = 50
	for i := range n {
		if _, err := alice.wait(alice.send(client.Draft{To: "bob", Content: fmt.Sprint(i)})); err != nil {
			t.Fatal(err)
		}
	}
	alice.mu.Lock()
	for uuid, states := range alice.states {
		if slices.Contains(states, client.Delivered) {
			t.Errorf("%s is confirmed, but the application has not taken it", uuid)
		}
	}
	alice.mu.Unlock()
	close(release)
	bob.until("all messages", func() bool { return len(bob.messages) == n })
	for i, m := range bob.messages {
		if m.Content != fmt.Sprint(i) {
			t.Fatalf("message %d is %q", i, m.Content)
		}
	}
}

func TestSend(t *testing.T) {
	cfg := client.Default()
	cfg.URL, cfg.Token, cfg.QueueMax = "tcp://127.0.0.1:1", "t", 2
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	first, err := c.Send(client.Draft{UUID: "u1", To: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Send(client.Draft{UUID: "u1", To: "bob"}); err != nil || again != first {
		t.Errorf("the same uuid: %p and %p, %v", first, again, err)
	}
	for _, d := range []client.Draft{{To: ""}, {To: "a b"}, {UUID: "a b", To: "bob"}} {
		if _, err := c.Send(d); err == nil {
			t.Errorf("%+v was taken", d)
		}
	}
	if _, err := c.Send(client.Draft{To: "bob", Body: make([]byte, 62<<10+1)}); !errors.Is(err, client.ErrTooBig) {
		t.Errorf("too big: %v", err)
	}
	if _, err := c.Send(client.Draft{To: "g:team"}); err != nil {
		t.Error(err)
	}
	if _, err := c.Send(client.Draft{To: "bob"}); !errors.Is(err, client.ErrQueueFull) {
		t.Errorf("full: %v", err)
	}
	if list := c.Unsettled(); len(list) != 2 || list[0] != first {
		t.Errorf("unsettled: %v", list)
	}
	c.Close()
	if _, err := first.Wait(t.Context()); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := c.Run(t.Context()); err != nil {
		t.Errorf("Run after Close: %v", err)
	}
}

func TestPullAndRead(t *testing.T) {
	g := clienttest.Listen(t, "ws")
	g.SetPage(2)
	alice := start(t, g.URL, "alice", nil)
	bob := start(t, g.URL, "bob", nil)
	bob.connected()
	for range 3 {
		if _, err := alice.wait(alice.send(client.Draft{UUID: "", To: "bob", Content: "x"})); err != nil {
			t.Fatal(err)
		}
	}
	bob.until("all messages", func() bool { return len(bob.messages) == 3 })
	page, err := bob.Pull(t.Context(), "u:alice:bob", 0, 100)
	if err != nil || len(page.Messages) != 2 || !page.HasMore || page.Messages[1].Seq != 2 {
		t.Fatalf("Pull: %+v, %v", page, err)
	}
	page, err = bob.Pull(t.Context(), "u:alice:bob", 2, 100)
	if err != nil || len(page.Messages) != 1 || page.HasMore {
		t.Fatalf("Pull: %+v, %v", page, err)
	}
	bob.MarkRead("u:alice:bob", 3)
	alice.until("read", func() bool {
		for _, states := range alice.states {
			if !slices.Contains(states, client.Read) {
				return false
			}
		}
		return len(alice.states) == 3
	})
}

func TestValidate(t *testing.T) {
	good := client.Default()
	good.URL, good.Token = "ws://h/ws", "t"
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, break_ := range []func(*client.Config){
		func(c *client.Config) { c.URL = "http://h" },
		func(c *client.Config) { c.URL = "tcp://h" },
		func(c *client.Config) { c.URL = "ws://%zz" },
		func(c *client.Config) { c.Token = "" },
		func(c *client.Config) { c.LoginBy = "magic" },
		func(c *client.Config) { c.URL, c.LoginBy = "tcp://h:1", client.LoginByHeader },
		func(c *client.Config) { c.DeviceID = "a b" },
		func(c *client.Config) { c.QueueMax = 0 },
		func(c *client.Config) { c.Resends = 11 },
		func(c *client.Config) { c.EventsMax = 0 },
		func(c *client.Config) { c.GiveUp = 0 },
		func(c *client.Config) { c.ReconnectMax = 1 },
	} {
		c := good
		break_(&c)
		if err := c.Validate(); err == nil {
			t.Errorf("%+v is taken", c)
		}
		if _, err := client.New(c); err == nil {
			t.Errorf("%+v makes a client", c)
		}
	}
}
