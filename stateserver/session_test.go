package stateserver

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
)

// windowedUp is a message of a windowed sender.
func windowedUp(uuid string, seq, low uint64) []byte {
	return command(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: uuid, Type: 1, Content: uuid, ReceiverId: "bob",
		SessionId: "s1", SessionSeq: seq, SessionLow: low})
}

func TestWindowedSenderEarlyFramesWait(t *testing.T) {
	b := start(t, func(c *Config, _ *Deps) { c.Reorder.Wait = time.Second })
	g := b.gateway("gw-1")
	// Early ones on one connection, the missing one on another, as after a reconnect.
	g.send(g.frame(1, "alice", windowedUp("b", 2, 1)), g.frame(1, "alice", windowedUp("c", 3, 1)))
	g.send(g.frame(2, "alice", windowedUp("a", 1, 1)))
	for _, a := range g.answers(3) {
		if ack := ackOf(t, a); ack.Status != clientv1.MessageAckStatus_ACK_OK || ack.OutOfOrder {
			t.Errorf("%v", ack)
		}
	}
	for i, m := range b.conversation("u:alice:bob") {
		if want := string(rune('a' + i)); m.UUID != want {
			t.Errorf("number %d is %s, want %s", i+1, m.UUID, want)
		}
	}
}

func TestWindowedSenderGap(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	g.send(g.frame(1, "alice", windowedUp("a", 1, 1)), g.frame(1, "alice", windowedUp("c", 3, 1)), g.frame(1, "alice", windowedUp("d", 4, 1)))
	answers := g.answers(3)
	if ack := ackOf(t, answers[0]); ack.Status != clientv1.MessageAckStatus_ACK_OK {
		t.Errorf("a: %v", ack)
	}
	for _, a := range answers[1:] {
		if ack := ackOf(t, a); ack.Status != clientv1.MessageAckStatus_ACK_RETRY || ack.Reason != "gap" || ack.ExpectedSessionSeq != 2 {
			t.Errorf("behind the gap: %v", ack)
		}
	}
	// The sender gives b up: it blocks nobody.
	if ack := ackOf(t, g.ask(g.frame(1, "alice", windowedUp("c", 3, 3)))); ack.Status != clientv1.MessageAckStatus_ACK_OK || ack.Seq != 2 {
		t.Errorf("c: %v", ack)
	}
	// A late copy of b would break the order; one of a is known.
	if ack := ackOf(t, g.ask(g.frame(1, "alice", windowedUp("b", 2, 2)))); ack.Status != clientv1.MessageAckStatus_ACK_RETRY || ack.Reason != "gap" || ack.ExpectedSessionSeq != 4 {
		t.Errorf("late b: %v", ack)
	}
	if ack := ackOf(t, g.ask(g.frame(1, "alice", windowedUp("a", 1, 1)))); ack.Status != clientv1.MessageAckStatus_ACK_OK || ack.Seq != 1 {
		t.Errorf("a again: %v", ack)
	}
	if n := len(b.conversation("u:alice:bob")); n != 2 {
		t.Errorf("%d stored", n)
	}
}

func TestWindowedSenderRefusedNumbersCountAsSettled(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	tooBig := command(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: "big", ReceiverId: "bob", Body: make([]byte, 65000), SessionId: "s1", SessionSeq: 1, SessionLow: 1})
	g.send(g.frame(1, "alice", tooBig), g.frame(1, "alice", windowedUp("b", 2, 1)))
	answers := g.answers(2)
	if ack := ackOf(t, answers[0]); ack.Status != clientv1.MessageAckStatus_ACK_FAIL {
		t.Errorf("%v", ack)
	}
	if ack := ackOf(t, answers[1]); ack.Status != clientv1.MessageAckStatus_ACK_OK {
		t.Errorf("%v", ack)
	}
}

func TestPolicyDeliverStoresWhatIsThere(t *testing.T) {
	b := start(t, func(c *Config, _ *Deps) { c.Reorder.Policy = "deliver" })
	g := b.gateway("gw-1")
	g.send(g.frame(1, "alice", windowedUp("a", 1, 1)), g.frame(1, "alice", windowedUp("c", 3, 1)))
	for _, a := range g.answers(2) {
		if ack := ackOf(t, a); ack.Status != clientv1.MessageAckStatus_ACK_OK || ack.OutOfOrder {
			t.Errorf("%v", ack)
		}
	}
	for range 2 {
		late := ackOf(t, g.ask(g.frame(1, "alice", windowedUp("b", 2, 1))))
		if late.Status != clientv1.MessageAckStatus_ACK_OK || late.Seq != 3 {
			t.Errorf("latecomer: %v", late)
		}
	}
	if n := len(b.conversation("u:alice:bob")); n != 3 {
		t.Errorf("%d stored", n)
	}
}

// TestWindowedSenderThroughTrouble is a windowed client against a store that fails again and again: what is stored is in
// the client's order, without holes.
func TestWindowedSenderThroughTrouble(t *testing.T) {
	b, s := startTrouble(t, func(c *Config) { c.Store.Wait = 100 * time.Millisecond })
	s.slow = 2 * time.Millisecond // so that later messages queue behind one that is going to fail
	g := b.gateway("gw-1")
	const messages, window = 200, 16
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-g.rpc.Context().Done():
				return
			case <-time.After(time.Duration(1+rand.IntN(10)) * time.Millisecond): // the rhythm of the trouble
			}
			s.set(func() {
				s.fail = nil
				if i%3 == 0 {
					s.fail = fmt.Errorf("trouble %d", i)
				}
				s.lie = i%5 == 0
			})
		}
	}()
	settled := make([]bool, messages+1)
	low := func() uint64 {
		n := uint64(1)
		for n <= messages && settled[n] {
			n++
		}
		return n
	}
	inFlight := map[uint64]uint64{} // conn_seq → session_seq
	busy := map[uint64]bool{}
	seen := 0
	deadline := time.Now().Add(waitMax)
	for low() <= messages {
		if time.Now().After(deadline) {
			t.Fatalf("no progress beyond %d", low())
		}
		for n := low(); n <= messages && n < low()+window; n++ {
			if !settled[n] && !busy[n] {
				it := g.frame(1, "alice", windowedUp(fmt.Sprintf("m%d", n), n, low()))
				inFlight[it.ConnSeq], busy[n] = n, true
				g.send(it)
			}
		}
		g.await("an answer", func() bool { return len(g.got) > seen })
		g.mu.Lock()
		fresh := g.got[seen:]
		seen = len(g.got)
		g.mu.Unlock()
		for _, a := range fresh {
			n := inFlight[a.ConnSeq]
			busy[n] = false
			settled[n] = settled[n] || ackOf(t, a).Status == clientv1.MessageAckStatus_ACK_OK
		}
	}
	rows := b.conversation("u:alice:bob")
	if len(rows) != messages {
		t.Errorf("%d rows, want %d", len(rows), messages)
	}
	for i, m := range rows {
		if want := fmt.Sprintf("m%d", i+1); m.UUID != want {
			t.Fatalf("number %d is %s, want %s", i+1, m.UUID, want)
		}
	}
	g.cancel()
	<-ended
}
