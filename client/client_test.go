package client_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/client"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait of a test; on a good day nothing takes a hundredth of it.
const patience = time.Minute

// testCertificate is a certificate for 127.0.0.1 that signs itself.
func testCertificate(t *testing.T) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// app is a client with what its application has seen.
type app struct {
	*client.Client
	t    *testing.T
	stop context.CancelFunc
	end  chan error

	mu          sync.Mutex
	changed     chan struct{}
	messages    []client.Message
	states      map[string][]client.State
	connections []client.ConnectionEvent
	alarms      []client.Alarm
}

// start runs a client; change may adjust its configuration.
func start(t *testing.T, url, uid string, change func(*client.Config)) *app {
	a := &app{t: t, end: make(chan error, 1), changed: make(chan struct{}), states: map[string][]client.State{}}
	cfg := client.Default()
	cfg.URL, cfg.Token = url, "token-"+uid
	cfg.ReconnectMin, cfg.ReconnectMax = time.Millisecond, 20*time.Millisecond
	cfg.TLS = &tls.Config{InsecureSkipVerify: true}
	cfg.Handlers = client.Handlers{
		OnMessage:    func(m client.Message) { a.note(func() { a.messages = append(a.messages, m) }) },
		OnState:      func(s client.StateChange) { a.note(func() { a.states[s.UUID] = append(a.states[s.UUID], s.State) }) },
		OnConnection: func(e client.ConnectionEvent) { a.note(func() { a.connections = append(a.connections, e) }) },
		OnAlarm:      func(e client.Alarm) { a.note(func() { a.alarms = append(a.alarms, e) }) },
	}
	if change != nil {
		change(&cfg)
	}
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.Client = c
	ctx, cancel := context.WithCancel(t.Context())
	a.stop = cancel
	ended := make(chan struct{})
	go func() {
		a.end <- c.Run(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return a
}

func (a *app) note(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

// until waits for a condition on what the application has seen.
func (a *app) until(what string, ok func() bool) {
	a.t.Helper()
	timeout := time.After(patience)
	for {
		a.mu.Lock()
		met, changed := ok(), a.changed
		a.mu.Unlock()
		if met {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			a.mu.Lock()
			defer a.mu.Unlock()
			a.t.Fatalf("%s: never; %d messages, connection %+v, alarms %+v", what, len(a.messages), a.connections, a.alarms)
		}
	}
}

func (a *app) connected() {
	a.t.Helper()
	a.until("connected", func() bool {
		return slices.ContainsFunc(a.connections, func(e client.ConnectionEvent) bool { return e.State == client.Connected })
	})
}

func (a *app) send(d client.Draft) *client.Outgoing {
	a.t.Helper()
	o, err := a.Send(d)
	if err != nil {
		a.t.Fatal(err)
	}
	return o
}

func (a *app) wait(o *client.Outgoing) (client.StateChange, error) {
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	return o.Wait(ctx)
}

// converse lets two clients send n messages each way, and checks what the protocol promises.
func converse(t *testing.T, g *gateway, alice, bob *app, n int) {
	t.Helper()
	var handles []*client.Outgoing
	for i := range n {
		handles = append(handles, alice.send(client.Draft{UUID: fmt.Sprintf("a%d", i), To: "bob", Content: fmt.Sprint(i)}))
		handles = append(handles, bob.send(client.Draft{UUID: fmt.Sprintf("b%d", i), To: "alice", Content: fmt.Sprint(i)}))
	}
	for i, o := range handles {
		if s, err := alice.wait(o); err != nil || s.State != client.Stored {
			t.Fatalf("message %d: %v, %v", i, s.State, err)
		}
	}
	for _, a := range []*app{alice, bob} {
		a.until("all messages", func() bool { return len(a.messages) >= n })
		a.until("all delivered", func() bool {
			for _, states := range a.states {
				if !slices.Contains(states, client.Delivered) {
					return false
				}
			}
			return len(a.states) == n
		})
	}
	g.mu.Lock()
	stored := len(g.server.Messages("u:alice:bob"))
	g.mu.Unlock()
	if stored != 2*n {
		t.Errorf("the server has %d messages, sent were %d", stored, 2*n)
	}
	for name, a := range map[string]*app{"alice": alice, "bob": bob} {
		a.mu.Lock()
		last := int64(0)
		for i, m := range a.messages {
			if m.Content != fmt.Sprint(i) || m.Seq <= last {
				t.Fatalf("%s: message %d is %q with number %d after %d", name, i, m.Content, m.Seq, last)
			}
			last = m.Seq
		}
		for uuid, states := range a.states {
			if !slices.IsSorted(states) || len(slices.Compact(slices.Clone(states))) != len(states) {
				t.Errorf("%s: %s went through %v", name, uuid, states)
			}
		}
		if len(a.messages) != n || len(a.alarms) != 0 {
			t.Errorf("%s: %d messages, alarms %+v", name, len(a.messages), a.alarms)
		}
		a.mu.Unlock()
	}
}

func TestConversation(t *testing.T) {
	for _, scheme := range []string{"ws", "tcp", "wss", "tls"} {
		t.Run(scheme, func(t *testing.T) {
			g := listen(t, scheme)
			alice := start(t, g.url, "alice", nil)
			bob := start(t, g.url, "bob", nil)
			converse(t, g, alice, bob, 100)
		})
	}
}

// TestConnectionsBreakMidMessage: connections break before a message is carried out and before its answer leaves, answers
// say RETRY, confirmations are lost; nothing is lost or doubled for all that.
func TestConnectionsBreakMidMessage(t *testing.T) {
	for _, scheme := range []string{"ws", "tcp"} {
		t.Run(scheme, func(t *testing.T) {
			g := listen(t, scheme)
			g.server.Page = 3
			rnd := mathrand.New(mathrand.NewPCG(1, 2))
			g.decide = func(_ string, cmd *clientv1.Command) fate {
				switch n := rnd.IntN(20); {
				case n == 0:
					return cutBefore
				case n == 1:
					return cutAfter
				case n == 2 && cmd.Type == clientv1.CommandType_MESSAGEUP:
					return answerRetry
				default:
					return handle
				}
			}
			alice := start(t, g.url, "alice", nil)
			bob := start(t, g.url, "bob", nil)
			converse(t, g, alice, bob, 100)
		})
	}
}

func TestKickIsFinal(t *testing.T) {
	g := listen(t, "ws")
	g.decide = func(_ string, cmd *clientv1.Command) fate {
		if cmd.Type == clientv1.CommandType_MESSAGEUP {
			return kick
		}
		return handle
	}
	queue := &client.MemoryQueue{}
	a := start(t, g.url, "alice", func(c *client.Config) { c.Queue = queue })
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
			g := listen(t, c.scheme)
			a := start(t, g.url, "alice", func(cfg *client.Config) {
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
	g := listen(t, "ws")
	asked := false
	g.decide = func(_ string, cmd *clientv1.Command) fate {
		if cmd.Type == clientv1.CommandType_MESSAGEUP && !asked {
			asked = true
			return reconnectNow
		}
		return handle
	}
	a := start(t, g.url, "alice", nil)
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
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.logins[0].SessionId == "" || g.logins[0].SessionId != g.logins[1].SessionId {
		t.Errorf("sessions: %q, %q", g.logins[0].SessionId, g.logins[1].SessionId)
	}
	if g.logins[1].DeviceId != "made-by-gateway" {
		t.Errorf("the device that the gateway made is not kept: %q", g.logins[1].DeviceId)
	}
}

// TestSlowApplication: while the application is busy nothing is lost, and what waits is bounded.
func TestSlowApplication(t *testing.T) {
	g := listen(t, "tcp")
	release := make(chan struct{})
	var bob *app
	bob = start(t, g.url, "bob", func(c *client.Config) {
		c.EventsMax = 2
		next := c.Handlers.OnMessage
		c.Handlers.OnMessage = func(m client.Message) {
			<-release
			next(m)
		}
	})
	bob.connected()
	alice := start(t, g.url, "alice", nil)
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
}

func TestPullAndRead(t *testing.T) {
	g := listen(t, "ws")
	g.server.Page = 2
	alice := start(t, g.url, "alice", nil)
	bob := start(t, g.url, "bob", nil)
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
