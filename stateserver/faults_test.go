package stateserver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/stateserver/store"
)

// trouble is a store in front of a real one: it can be made to hang, to fail, and to lie about its COMMIT.
type trouble struct {
	store.Store

	mu sync.Mutex
	// Guarded by mu.
	hold chan struct{}
	held int
	fail error
	// slow is how long each Append takes.
	slow time.Duration
	// lie: the next Append works and reports an unknown outcome; unresolved: Resolve fails that often.
	lie        bool
	unresolved int
}

func (s *trouble) Append(ctx context.Context, b *store.Batch) ([]store.Result, error) {
	s.mu.Lock()
	hold, fail, lie, slow := s.hold, s.fail, s.lie, s.slow
	s.lie = false
	s.mu.Unlock()
	if hold != nil {
		s.set(func() { s.held++ })
		<-hold
		s.set(func() { s.held-- })
	}
	<-time.After(slow)
	if fail != nil {
		return nil, fail
	}
	r, err := s.Store.Append(ctx, b)
	if lie && err == nil {
		return nil, fmt.Errorf("%w: connection lost", store.ErrUnknown)
	}
	return r, err
}

func (s *trouble) Resolve(ctx context.Context, keys []store.Key) (map[store.Key]store.Result, error) {
	s.mu.Lock()
	down := s.unresolved > 0
	s.unresolved--
	s.mu.Unlock()
	if down {
		return nil, errors.New("still down")
	}
	return s.Store.Resolve(ctx, keys)
}

func (s *trouble) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// startTrouble runs a server whose store can be troubled.
func startTrouble(t *testing.T, change func(*Config)) (*bench, *trouble) {
	t.Helper()
	db, err := store.Open(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "t.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s := &trouble{Store: db}
	b := start(t, func(c *Config, d *Deps) {
		d.Store = s
		c.Store.DSN = "sqlite://unused"
		if change != nil {
			change(c)
		}
	})
	return b, s
}

func TestRedisAwayYieldsRetry(t *testing.T) {
	for name, c := range map[string]struct{ ruin, mend func(*bench) }{
		"killed": {func(b *bench) { b.redis.Kill() }, func(b *bench) { b.redis.Start() }},
		"hung":   {func(b *bench) { b.redis.Signal(syscall.SIGSTOP) }, func(b *bench) { b.redis.Signal(syscall.SIGCONT) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, func(c *Config, _ *Deps) { c.Dedup.Timeout = 50 * time.Millisecond })
			g := b.gateway("gw-1")
			sendUntilOK(t, g, "before")
			c.ruin(b)
			for i := range 20 {
				ack := ackOf(t, g.ask(g.frame(1, "alice", up(fmt.Sprint(i), "bob", "x"))))
				if ack.Status != clientv1.MessageAckStatus_ACK_RETRY || ack.Reason != "dedup_unavailable" {
					t.Fatalf("without Redis: %v", ack)
				}
			}
			if n := len(b.conversation("u:alice:bob")); n != 1 {
				t.Errorf("%d stored", n)
			}
			c.mend(b)
			for i := range 20 {
				sendUntilOK(t, g, fmt.Sprint(i))
			}
			if n := len(b.conversation("u:alice:bob")); n != 21 {
				t.Errorf("%d stored, want 21", n)
			}
		})
	}
}

// sendUntilOK is a stop-and-wait client.
func sendUntilOK(t *testing.T, g *gateway, uuid string) *clientv1.MessageAck {
	t.Helper()
	for deadline := time.Now().Add(waitMax); time.Now().Before(deadline); {
		ack := ackOf(t, g.ask(g.frame(1, "alice", up(uuid, "bob", "x"))))
		switch ack.Status {
		case clientv1.MessageAckStatus_ACK_OK:
			return ack
		case clientv1.MessageAckStatus_ACK_FAIL:
			t.Fatalf("%v", ack)
		}
		time.Sleep(5 * time.Millisecond) // the pause between two looks at a condition with a deadline
	}
	t.Fatalf("%s is never stored", uuid)
	return nil
}

func TestSlowStoreYieldsRetryAndTheResendFindsTheMessage(t *testing.T) {
	b, s := startTrouble(t, func(c *Config) { c.Store.Wait = 30 * time.Millisecond })
	g := b.gateway("gw-1")
	hold := make(chan struct{})
	s.set(func() { s.hold = hold })
	for _, uuid := range []string{"1", "1", "2"} {
		if ack := ackOf(t, g.ask(g.frame(1, "alice", up(uuid, "bob", "x")))); ack.Status != clientv1.MessageAckStatus_ACK_RETRY || ack.Reason != "timeout" {
			t.Fatalf("while the store hangs: %v", ack)
		}
	}
	s.set(func() { s.hold = nil })
	close(hold)
	first, second := sendUntilOK(t, g, "1"), sendUntilOK(t, g, "2")
	if first.Seq != 1 || second.Seq != 2 {
		t.Errorf("numbers %d and %d", first.Seq, second.Seq)
	}
	if n := len(b.conversation("u:alice:bob")); n != 2 {
		t.Errorf("%d stored", n)
	}
	eventually(t, "all ids settled and both delivered", func() (ok bool) {
		b.delivery.look(func() { ok = len(b.delivery.open) == 0 && len(b.delivery.tasks) == 2 })
		return ok
	})
}

func TestFailingStore(t *testing.T) {
	b, s := startTrouble(t, nil)
	g := b.gateway("gw-1")
	s.set(func() { s.fail = errors.New("disk full") })
	for range 3 {
		if ack := ackOf(t, g.ask(g.frame(1, "alice", up("1", "bob", "x")))); ack.Status != clientv1.MessageAckStatus_ACK_RETRY || ack.Reason != "store_unavailable" {
			t.Fatalf("%v", ack)
		}
	}
	s.set(func() { s.fail = nil })
	if ack := sendUntilOK(t, g, "1"); ack.Seq != 1 {
		t.Errorf("%v", ack)
	}
}

func TestUnknownCommitIsResolvedBeforeTheAnswer(t *testing.T) {
	b, s := startTrouble(t, nil)
	g := b.gateway("gw-1")
	s.set(func() { s.lie, s.unresolved = true, 2 })
	if ack := ackOf(t, g.ask(g.frame(1, "alice", up("1", "bob", "x")))); ack.Status != clientv1.MessageAckStatus_ACK_OK || ack.Seq != 1 {
		t.Errorf("%v", ack)
	}
	eventually(t, "delivery", func() (ok bool) {
		b.delivery.look(func() { ok = len(b.delivery.open) == 0 && len(b.delivery.tasks) == 1 })
		return ok
	})
}

func TestConcurrentResendsThroughManyGateways(t *testing.T) {
	b := start(t, nil)
	const gateways, uuids = 6, 200
	var wg sync.WaitGroup
	results := make([]map[string]string, gateways)
	for i := range gateways {
		g := b.gateway(fmt.Sprintf("gw-%d", i))
		results[i] = make(map[string]string)
		wg.Go(func() {
			for u := range uuids {
				_ = g.trySend(g.frame(1, "alice", up(fmt.Sprint((u+i*7)%uuids), "bob", "x")))
			}
			for _, a := range g.answers(uuids) {
				ack := ackOf(t, a)
				results[i][ack.Uuid] = fmt.Sprint(ack.Status, ack.MsgId, ack.ConvId, ack.Seq, ack.ServerAtMs)
			}
		})
	}
	wg.Wait()
	for u := range uuids {
		for i := range gateways {
			if r := results[i][fmt.Sprint(u)]; r == "" || r != results[0][fmt.Sprint(u)] {
				t.Fatalf("uuid %d: gateway %d was told %q, gateway 0 %q", u, i, r, results[0][fmt.Sprint(u)])
			}
		}
	}
	if n := len(b.conversation("u:alice:bob")); n != uuids {
		t.Errorf("%d rows for %d uuids", n, uuids)
	}
	eventually(t, "one delivery a message", func() (ok bool) {
		b.delivery.look(func() { ok = len(b.delivery.tasks) == uuids && len(b.delivery.open) == 0 })
		return ok
	})
}
