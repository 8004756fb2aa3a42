package stateserver

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateserver/delivery"
)

// TestRealWay: a message goes to the receiver's devices and the sender's other ones, the acks empty the resend table, and
// what is read is told to the sender and to the reader's other devices alone.
func TestRealWay(t *testing.T) {
	b, p := startReal(t, nil)
	g, e := b.gateway("gw-1"), newEdge(t, p, "gw-1")
	e.connect("alice/phone", "alice/laptop", "bob/phone", "bob/laptop")
	g.say("alice/phone", "1", "bob", "one")
	g.say("alice/phone", "2", "bob", "two")
	both := []string{"one", "two"}
	for _, d := range []string{"bob/phone", "bob/laptop", "alice/laptop"} {
		eventually(t, "messages at "+d, func() bool { return slices.Equal(e.texts(d), both) })
	}
	if got := e.texts("alice/phone"); len(got) > 0 {
		t.Errorf("the sending device got %q", got)
	}
	conv := "u:alice:bob"
	for _, d := range []string{"bob/laptop", "alice/laptop"} {
		g.send(g.from(d, command(clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: conv, Seq: 2})))
	}
	g.send(g.from("bob/phone", command(clientv1.CommandType_READ, &clientv1.Read{ConvId: conv, Seq: 2})))
	eventually(t, "an empty resend table", func() bool { return p.unacked(t) == 0 })
	read := fmt.Sprintf("READ_NOTICE conv_id:%q uid:%q seq:2", conv, "bob")
	for _, d := range []string{"alice/phone", "alice/laptop", "bob/laptop"} {
		eventually(t, "the notice at "+d, func() bool { return slices.Contains(e.notices(d), read) })
	}
	if got := e.notices("bob/phone"); slices.Contains(got, read) {
		t.Errorf("the reading device was told %q", got)
	}
	r := dataOf(t, g.ask(g.from("bob/phone", command(clientv1.CommandType_SYNC, &clientv1.Sync{}))), clientv1.CommandType_SYNC_REPLY, &clientv1.SyncReply{})
	if c := r.Conversations[0]; c.Unread != 0 || c.ReadSeq != 2 {
		t.Errorf("bob sees %v", c)
	}
}

// TestRealCrashBeforeEnrolment: the process dies when messages are stored, or looked up, and not yet enrolled. The next run
// brings them without anybody writing, each stored once.
func TestRealCrashBeforeEnrolment(t *testing.T) {
	for _, die := range []string{FailpointCommitted + ":2", delivery.FailpointFound + ":2", delivery.FailpointEnrolled + ":2", delivery.FailpointPushed + ":1"} {
		t.Run(die, func(t *testing.T) {
			t.Setenv(childReal, "yes")
			redis := testenv.Redis(t)
			p, closeReal, err := connectReal(redis.Addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(closeReal)
			e := newEdge(t, p, "gw-1")
			e.connect("bob/phone")
			e.look(func() { e.deaf = true })
			dsn := "sqlite://" + filepath.Join(t.TempDir(), "sluice.db")
			addr, gone := child(t, dsn, redis.Addr, die)
			conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			g := (&bench{t: t, conn: conn}).gateway("gw-1")
			for i := 0; i < 1000 && g.trySend(g.from("alice/phone", up(fmt.Sprint(i), "bob", fmt.Sprint(i)))) == nil; i++ {
				g.await("an answer, or the end", func() bool { return len(g.got) > i || g.ended != nil })
			}
			g.await("the end of the stream", func() bool { return g.ended != nil })
			gone()
			e.look(func() { e.deaf = false })

			b := &bench{t: t, redis: redis, cfg: testConfig(redis.Addr, dsn)}
			b.run(func(c *Config, d *Deps) { d.Log = quiet(t); p.use(c, d) })
			defer b.stop()
			var want []string
			for _, m := range b.conversation("u:alice:bob") {
				want = append(want, m.Content)
			}
			if len(want) == 0 {
				t.Fatal("nothing was stored")
			}
			eventually(t, fmt.Sprintf("%d messages at bob", len(want)), func() bool {
				got := e.texts("bob/phone")
				slices.Sort(got)
				return slices.Equal(got, slices.Sorted(slices.Values(want)))
			})
		})
	}
}

// TestRealReceiverMoves: his gateway is gone and its lease still stands; he is connected elsewhere.
func TestRealReceiverMoves(t *testing.T) {
	b, p := startReal(t, nil)
	g, old, next := b.gateway("gw-1"), newEdge(t, p, "gw-old"), newEdge(t, p, "gw-new")
	old.connect("bob/phone")
	g.say("alice/phone", "1", "bob", "one")
	eventually(t, "the first message", func() bool { return len(old.texts("bob/phone")) == 1 })
	old.server.Stop()
	g.say("alice/phone", "2", "bob", "two")
	next.connect("bob/phone")
	// The first one was never acked, so it comes again too.
	eventually(t, "both at the new gateway", func() bool {
		got := next.texts("bob/phone")
		return slices.Contains(got, "one") && slices.Contains(got, "two")
	})
}

// TestRealStaleRoute: a gateway that disowns a connection has its route removed, and the receiver is offline.
func TestRealStaleRoute(t *testing.T) {
	b, p := startReal(t, nil)
	g, e := b.gateway("gw-1"), newEdge(t, p, "gw-1")
	e.connect("bob/phone")
	e.look(func() { e.routes = nil })
	g.say("alice/phone", "1", "bob", "one")
	eventually(t, "the route is gone and nothing is owed", func() bool {
		found, err := p.table.Find(context.Background(), []string{"bob"})
		return err == nil && len(found["bob"]) == 0 && p.unacked(t) == 0
	})
}

// pausing holds the caller of one failpoint once, until it is released.
type pausing struct {
	at      string
	once    sync.Once
	reached chan struct{}
	release chan struct{}
}

func pauseAt(name string) *pausing {
	return &pausing{at: name, reached: make(chan struct{}), release: make(chan struct{})}
}

func (p *pausing) hook(name string) {
	if name == p.at {
		p.once.Do(func() {
			close(p.reached)
			<-p.release
		})
	}
}

// TestRealRedisFlushed: everything in Redis is lost between the lookup of a message and its end. What is above the mark is
// delivered again, and routes come back.
func TestRealRedisFlushed(t *testing.T) {
	for _, at := range []string{delivery.FailpointFound, delivery.FailpointEnrolled} {
		t.Run(at, func(t *testing.T) {
			stop := pauseAt(at)
			b, p := startReal(t, func(_ *Config, d *Deps) { d.Failpoint = stop.hook })
			g, e := b.gateway("gw-1"), newEdge(t, p, "gw-1")
			e.connect("bob/phone")
			g.say("alice/phone", "1", "bob", "one")
			<-stop.reached
			if err := p.rdb.FlushAll(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the loss is noticed", func() bool { return p.redelivered.Load() > 0 })
			close(stop.release)
			eventually(t, "the message at bob", func() bool { return slices.Contains(e.texts("bob/phone"), "one") })
			eventually(t, "the route again", func() (ok bool) {
				e.look(func() { ok = e.restored > 0 })
				return ok
			})
			// The system works on, with everything that it had in Redis gone.
			g.say("alice/phone", "2", "bob", "two")
			eventually(t, "the next message", func() bool { return slices.Contains(e.texts("bob/phone"), "two") })
			g.send(g.from("bob/phone", command(clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: "u:alice:bob", Seq: 2})))
			eventually(t, "nothing owed", func() bool { return p.unacked(t) == 0 })
		})
	}
}

// TestRealRedisAway: Redis is killed when a message is stored and not looked up yet. Nothing is called offline meanwhile;
// when it is back, empty, the message is pushed, or bob's route comes after it, and then a RESYNC makes him pull.
func TestRealRedisAway(t *testing.T) {
	stop := pauseAt(FailpointCommitted)
	b, p := startReal(t, func(_ *Config, d *Deps) { d.Failpoint = stop.hook })
	g, e := b.gateway("gw-1"), newEdge(t, p, "gw-1")
	e.connect("bob/phone")
	g.send(g.from("alice/phone", up("1", "bob", "one")))
	<-stop.reached
	b.redis.Kill()
	close(stop.release)
	if ack := ackOf(t, g.answers(1)[0]); ack.Status != clientv1.MessageAckStatus_ACK_OK {
		t.Fatalf("%v", ack)
	}
	// While Redis is away there is no false OK.
	if ack := ackOf(t, g.ask(g.from("alice/phone", up("2", "bob", "two")))); ack.Status != clientv1.MessageAckStatus_ACK_RETRY {
		t.Errorf("without Redis: %v", ack)
	}
	b.redis.Start()
	eventually(t, "the message at bob, or his route behind it", func() (ok bool) {
		e.look(func() { ok = e.restored > 0 })
		return ok || slices.Contains(e.texts("bob/phone"), "one")
	})
	r := dataOf(t, g.ask(g.from("bob/phone", pull("u:alice:bob", 0, 10))), clientv1.CommandType_PULL_REPLY, &clientv1.PullReply{})
	if len(r.Messages) != 1 || r.Messages[0].Content != "one" {
		t.Errorf("bob pulls %v", r)
	}
	g.say("alice/phone", "2", "bob", "two")
	eventually(t, "his route", func() (ok bool) {
		e.look(func() { ok = e.restored > 0 })
		return ok
	})
	g.say("alice/phone", "3", "bob", "three")
	eventually(t, "the next message", func() bool { return slices.Contains(e.texts("bob/phone"), "three") })
}
