package delivery

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
)

func TestReceiverAcks(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	n := w.node(slowConfig())
	w.connect(g.route("bob", "phone", 1))
	w.connect(g.route("bob", "tablet", 2))
	w.connect(g.route("alice", "phone", 3))
	w.connect(g.route("alice", "desk", 4))

	m := message(1001, "alice", "bob", 1)
	settled := make(chan struct{})
	n.send(Task{Message: m, Receivers: []string{"bob", "alice"}, SenderDevice: "phone", Settled: func() { close(settled) }})
	eventually(t, "three pushes", func() bool { return g.count() == 3 })
	<-settled
	if got := g.seqs("alice", "phone"); got != nil {
		t.Fatalf("the sending device got its own message: %v", got)
	}
	g.mu.Lock()
	down, kind := g.arrivals[0].down, g.arrivals[0].command.GetType()
	g.mu.Unlock()
	if kind != clientv1.CommandType_MESSAGEDOWN || down.GetMsgId() != "1001" || down.GetConvId() != "u:alice:bob" || down.GetFromUid() != "alice" ||
		down.GetContent() != "hello" || string(down.GetBody()) != "\x00\x01\x02" || down.GetServerAtMs() != m.ServerAt || down.GetUuid() != m.UUID || down.GetType() != 1 {
		t.Fatalf("not the message that was stored: %v", down)
	}
	if got := w.pending(); got != 3 {
		t.Fatalf("%d pairs enrolled, want 3", got)
	}
	for _, a := range [][2]string{{"bob", "phone"}, {"bob", "tablet"}, {"alice", "desk"}} {
		advanced, err := n.Acked(context.Background(), a[0], a[1], "u:alice:bob", 1)
		if err != nil || !advanced {
			t.Fatalf("ack of %v: advanced %v, %v", a, advanced, err)
		}
	}
	if advanced, err := n.Acked(context.Background(), "bob", "phone", "u:alice:bob", 1); err != nil || advanced {
		t.Fatalf("a second ack: advanced %v, %v", advanced, err)
	}
	if keys := w.rdb.Keys(context.Background(), "unack:*:{*").Val(); len(keys) > 0 {
		t.Fatalf("left behind: %v", keys)
	}
	if n.pairs(pairAcked) != 3 || n.metric("sluice_delivery_seconds", "") != 3 || n.metric("sluice_client_acks_total", "") != 4 {
		t.Fatal("acks not counted")
	}
	eventually(t, "mark saved", func() bool { return n.marks.last() == 1001 })
	w.checkConserved(n)
}

func TestAckIsCumulative(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	n := w.node(slowConfig())
	w.connect(g.route("bob", "phone", 1))
	for seq := int64(1); seq <= 5; seq++ {
		n.send(to(100+seq, "bob", seq))
	}
	other := Task{Message: message(200, "carol", "bob", 1), Receivers: []string{"bob"}}
	n.send(other)
	eventually(t, "six pushes", func() bool { return g.count() == 6 })
	if _, err := n.Acked(context.Background(), "bob", "phone", "u:alice:bob", 4); err != nil {
		t.Fatal(err)
	}
	if got := sortedKeys(scores(t, w.rdb, "bob")); !slices.Equal(got, []string{"105", "200"}) {
		t.Fatalf("left: %v", got)
	}
	w.checkConserved(n)
}

func TestLostAckIsAnsweredByResendsUntilExhausted(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	c := fastConfig()
	n := w.node(c)
	w.connect(g.route("bob", "phone", 1))
	n.send(to(1, "bob", 1))
	eventually(t, "exhausted", func() bool { return n.pairs(pairExhausted) == 1 })
	eventually(t, "the pushes that were on their way", func() bool { return len(g.seqs("bob", "phone")) >= 4 })
	if got := g.seqs("bob", "phone"); len(got) != 4 {
		t.Fatalf("pushed %d times, want once and 3 resends", len(got))
	}
	for attempt, label := range []string{"1", "2", "3"} {
		if got := n.metric("sluice_resends_total", label); got != 1 {
			t.Errorf("attempt %d counted %v times", attempt+1, got)
		}
	}
	if got := n.metric("sluice_resend_exhausted_total", ""); got != 1 {
		t.Errorf("exhausted counted %v", got)
	}
	if w.pending() != 0 {
		t.Error("the entry is still there")
	}
	w.checkConserved(n)
}

func TestResendStopsAtAck(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	c := fastConfig()
	c.Resend.Backoff = []time.Duration{20 * time.Millisecond, 2 * time.Second} // the ack comes before the second
	n := w.node(c)
	w.connect(g.route("bob", "phone", 1))
	n.send(to(1, "bob", 1))
	eventually(t, "first resend", func() bool { return len(g.seqs("bob", "phone")) == 2 })
	if advanced, err := n.Acked(context.Background(), "bob", "phone", "u:alice:bob", 1); err != nil || !advanced {
		t.Fatal(advanced, err)
	}
	eventually(t, "hint gone or condemned", func() bool {
		s, err := w.rdb.ZScore(context.Background(), dueKey(shardOf("bob"))[0], "bob").Result()
		return err != nil || s != float64(int64(s))
	})
	if got := len(g.seqs("bob", "phone")); got > 2 {
		t.Fatalf("%d pushes", got)
	}
	if n := w.rdb.Exists(context.Background(), userKeys("bob")[2]+"1").Val(); n != 0 {
		t.Fatal("the counter of resends was left behind")
	}
}

func TestOfflineIsNotEnrolled(t *testing.T) {
	w := newWorld(t)
	n := w.node(slowConfig())
	n.send(to(7, "bob", 1))
	eventually(t, "mark", func() bool { return n.Mark() == 7 })
	if n.pairs(pairOffline) != 1 || w.pending() != 0 {
		t.Fatal("an offline receiver was enrolled")
	}
	w.checkConserved(n)
}

func TestOrderPerConversationAndDevice(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	n := w.node(slowConfig())
	const users, each = 20, 200
	for i, uid := range uids(users) {
		w.connect(g.route(uid, "d", uint64(i+1)))
	}
	id := int64(0)
	for seq := int64(1); seq <= each; seq++ {
		for _, uid := range uids(users) {
			id++
			n.send(to(id, uid, seq))
		}
	}
	eventually(t, "all pushed", func() bool { return g.count() == users*each })
	for _, uid := range uids(users) {
		got := g.seqs(uid, "d")
		if !slices.IsSorted(got) || len(got) != each {
			t.Fatalf("%s got %v", uid, got)
		}
	}
	eventually(t, "mark", func() bool { return n.Mark() == users*each })
	w.checkConserved(n)
}

func TestOverflowDropsTheOldest(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	c := slowConfig()
	n := w.node(c)
	w.connect(g.route("bob", "phone", 1))
	// Ids beyond 2^53: a double would not tell them apart.
	const base = int64(1) << 60
	for seq := int64(1); seq <= 230; seq++ {
		n.send(to(base+seq, "bob", seq))
	}
	eventually(t, "mark", func() bool { return n.Mark() == base+230 })
	got := scores(t, w.rdb, "bob")
	if len(got) != 200 {
		t.Fatalf("%d entries, want 200", len(got))
	}
	if _, ok := got[strconv.FormatInt(base+30, 10)]; ok {
		t.Fatal("the 30th should be gone")
	}
	if _, ok := got[strconv.FormatInt(base+31, 10)]; !ok {
		t.Fatal("the 31st should be there")
	}
	if n.metric("sluice_resend_overflow_total", "") != 30 || n.pairs(pairOverflowed) != 30 {
		t.Fatal("overflow not counted")
	}
	w.checkConserved(n)
}

func TestLargeGroupIsPushedOnce(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	c := fastConfig()
	c.Resend.GroupMembersMax = 50
	n := w.node(c)
	all := uids(120)
	for i, uid := range all {
		w.connect(g.route(uid, "d", uint64(i+1)))
	}
	m := message(5, "u0", "u1", 1)
	m.ConvID = "g:big"
	n.send(Task{Message: m, Receivers: all, SenderDevice: "d"})
	eventually(t, "all pushed", func() bool { return g.count() == 119 })
	eventually(t, "mark", func() bool { return n.Mark() == 5 })
	if w.pending() != 0 {
		t.Fatal("members of a large group were enrolled")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls != 1 {
		t.Fatalf("%d calls for one batch to one gateway", g.calls)
	}
}

func TestNotify(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	n := w.node(slowConfig())
	w.connect(g.route("alice", "phone", 1))
	w.connect(g.route("alice", "desk", 2))
	cmd := clientv1.Command{Type: clientv1.CommandType_DELIVERED_NOTICE}
	payload, err := cmd.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	n.Notify(Notice{UIDs: []string{"alice", "nobody"}, Command: payload})
	eventually(t, "two pushes", func() bool { return g.count() == 2 })
	n.Notify(Notice{UIDs: []string{"alice"}, Command: payload, NotUID: "alice", NotDevice: "desk"})
	eventually(t, "one more push", func() bool { return g.count() == 3 })

	// Nobody may write after this notice, so an outage must not lose it.
	w.failFind(errBroken)
	n.Notify(Notice{UIDs: []string{"alice"}, Command: payload, NotUID: "alice", NotDevice: "desk"})
	eventually(t, "it waits", func() bool { return n.late.len() == 1 })
	w.failFind(nil)
	eventually(t, "pushed after the outage", func() bool { return g.count() == 4 })
	g.answer(func(*gatewayv1.Target) gatewayv1.Result { return gatewayv1.Result_RESULT_DROPPED_SLOW })
	n.Notify(Notice{UIDs: []string{"alice"}, Command: payload})
	eventually(t, "both devices are tried again", func() bool { return n.late.len() == 2 })
	g.answer(func(*gatewayv1.Target) gatewayv1.Result { return gatewayv1.Result_RESULT_WRITTEN })
	eventually(t, "both devices have it", func() bool { return g.count() == 6 && n.late.len() == 0 })
	if w.pending() != 0 {
		t.Fatal("a notice was enrolled")
	}
	n.noticeLater(lateNotice{uid: "alice", command: payload, tries: noticeTriesMax})
	if dropped := n.metric("sluice_notices_dropped_total", ""); dropped != 1 || n.late.len() != 0 {
		t.Fatalf("%v dropped, %d wait", dropped, n.late.len())
	}
}

func TestDrainAtStop(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	n := w.node(slowConfig())
	w.connect(g.route("bob", "phone", 1))
	eventually(t, "leases held", func() bool { return len(n.leases.owned(time.Now())) == shards })
	var tasks []Task
	for seq := int64(1); seq <= 500; seq++ {
		tasks = append(tasks, to(seq, "bob", seq))
	}
	n.send(tasks...)
	n.stop()
	if g.count() != 500 || n.marks.last() != 500 {
		t.Fatalf("%d pushed, mark %d", g.count(), n.marks.last())
	}
	if err := n.Enqueue(context.Background(), tasks[:1]); err == nil {
		t.Fatal("a stopped delivery took a task")
	}
	if _, err := n.Acked(context.Background(), "bob", "phone", "x", 1); err == nil {
		t.Fatal("a stopped delivery took an ack")
	}
	if got := w.rdb.HGetAll(context.Background(), leaseKey).Val(); len(got) == 0 || slices.ContainsFunc(sortedKeys(got), func(f string) bool { return strings.HasPrefix(f, "s:") }) {
		t.Fatalf("leases not given back: %v", got)
	}
}
