package client_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/client"
	"github.com/sluice-im/sluice/client/clienttest"
	"github.com/sluice-im/sluice/internal/testenv/leaks"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	leaks.Main(m)
}

// patience bounds every wait of a test; on a good day nothing takes a hundredth of it.
const patience = time.Minute

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
func converse(t *testing.T, g *clienttest.Gateway, alice, bob *app, n int) {
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
	stored := len(g.Stored("u:alice:bob"))
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

// counter is a decide that only counts.
type counter struct {
	mu sync.Mutex
	n  map[clientv1.CommandType]int
}

func (c *counter) decide(_ string, cmd *clientv1.Command) clienttest.Fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[clientv1.CommandType]int{}
	}
	c.n[cmd.Type]++
	return clienttest.Handle
}

func (c *counter) of(t clientv1.CommandType) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[t]
}
