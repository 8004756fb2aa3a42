package core

import (
	"math/rand/v2"
	"slices"
	"time"

	"pgregory.net/rapid"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/client/internal/model"
)

// frame is a command on its way.
type frame struct {
	t    clientv1.CommandType
	data []byte
	at   time.Time
}

// stuckMax is how long a frame may be under way: heartbeats end a connection on which nothing moves.
const stuckMax = 30 * time.Second

// user is one machine with its network: what it sends arrives in order, answers come in order, pushes in any.
type user struct {
	uid     string
	m       *Machine
	online  bool
	up      []frame
	answers []frame
	pushes  []frame
	inHand  []*clientv1.MessageDown // released, not yet consumed

	// What was observed.
	state    map[string]State
	failed   map[string]bool
	settled  map[string]int
	sends    map[string]int
	received map[string][]int64 // per conversation
	own      map[string][]int64 // numbers of the own messages that were reported as stored
}

// world is two users, the logic tier, and the network between them.
type world struct {
	now    time.Time
	server *model.Server
	users  []*user
	uuids  int
}

func newWorld(seed uint64) *world {
	w := &world{now: time.Unix(1000, 0), server: model.New()}
	w.server.Page = 3
	cfg := Default()
	cfg.QueueMax, cfg.EarlyMax, cfg.TrackedMax = 20, 4, 1000
	for i, uid := range []string{"alice", "bob"} {
		w.users = append(w.users, &user{
			uid: uid, m: New(cfg, Marks{}, rand.New(rand.NewPCG(seed, uint64(i)))),
			state: map[string]State{}, failed: map[string]bool{}, settled: map[string]int{}, sends: map[string]int{},
			received: map[string][]int64{}, own: map[string][]int64{},
		})
	}
	return w
}

// settle carries out the effects of a user's machine and checks each on the spot.
func (w *world) settle(t *rapid.T, u *user) {
	for _, e := range u.m.Take() {
		switch e := e.(type) {
		case Write:
			f := frame{t: e.Type, at: w.now}
			if e.Message != nil {
				f.data = make([]byte, e.Message.SizeVT())
				if _, err := e.Message.MarshalToSizedBufferVT(f.data); err != nil {
					t.Fatal(err)
				}
			}
			u.up = append(u.up, f)
		case Changed:
			uuid := e.Message.Uuid
			if e.State <= u.state[uuid] {
				t.Fatalf("%s: %s went from %v to %v", u.uid, uuid, u.state[uuid], e.State)
			}
			u.state[uuid] = e.State
			if e.State == Stored {
				u.own[e.ConvID] = append(u.own[e.ConvID], e.Seq)
			}
		case Settled:
			if u.settled[e.Message.Uuid]++; u.settled[e.Message.Uuid] > u.sends[e.Message.Uuid] {
				t.Fatalf("%s: %s has two outcomes", u.uid, e.Message.Uuid)
			}
			if e.State != Stored && e.State != Failed {
				t.Fatalf("%s: outcome %v", u.uid, e.State)
			}
		case Release:
			w.released(t, u, e.Message)
		case Alarm:
			if e.Kind != AlarmPullGivenUp && e.Kind != AlarmSyncUnanswered {
				t.Fatalf("%s: alarm %+v", u.uid, e)
			}
		}
	}
}

// released: every number once, in order, and nothing skipped but the user's own.
func (w *world) released(t *rapid.T, u *user, d *clientv1.MessageDown) {
	if d.FromUid == u.uid {
		t.Fatalf("%s: got back the own message %s", u.uid, d.Uuid)
	}
	got := u.received[d.ConvId]
	last := int64(0)
	if len(got) > 0 {
		last = got[len(got)-1]
	}
	for seq := last + 1; seq < d.Seq; seq++ {
		if w.server.Messages(d.ConvId)[seq-1].FromUid != u.uid {
			t.Fatalf("%s: %s jumps from %d to %d", u.uid, d.ConvId, last, d.Seq)
		}
	}
	if d.Seq <= last {
		t.Fatalf("%s: %s goes back from %d to %d", u.uid, d.ConvId, last, d.Seq)
	}
	u.received[d.ConvId] = append(got, d.Seq)
	u.inHand = append(u.inHand, d)
}

func (w *world) peer(uid string) *user {
	for _, u := range w.users {
		if u.uid == uid {
			return u
		}
	}
	return nil
}

// fate is what becomes of an uplink.
type fate int

const (
	handled   fate = iota
	refused        // RETRY, and not carried out
	uncertain      // RETRY, but carried out: the answer was late
	lost           // carried out, and no answer ever comes
)

// deliverUp lets the server see the first command of a user.
func (w *world) deliverUp(u *user, what fate) {
	f := u.up[0]
	u.up = u.up[1:]
	// Only a message may be unanswered, or answered RETRY: to the rest a gateway says ERROR.
	if f.t != clientv1.CommandType_MESSAGEUP {
		what = handled
	}
	if what != refused {
		answer, others := w.server.Handle(u.uid, f.t, f.data)
		for _, c := range others {
			if p := w.peer(c.UID); p.online {
				p.pushes = append(p.pushes, encode(c))
			}
		}
		if answer != nil && what == handled {
			u.answers = append(u.answers, w.stamped(*answer))
		}
	}
	if f.t == clientv1.CommandType_MESSAGEUP && (what == refused || what == uncertain) {
		var up clientv1.MessageUp
		if err := up.UnmarshalVT(f.data); err != nil {
			panic(err)
		}
		u.answers = append(u.answers, w.stamped(model.Command{
			Type:    clientv1.CommandType_MESSAGEACK,
			Message: &clientv1.MessageAck{Uuid: up.Uuid, Status: clientv1.MessageAckStatus_ACK_RETRY, Reason: "timeout"},
		}))
	}
}

func (w *world) stamped(c model.Command) frame {
	f := encode(c)
	f.at = w.now
	return f
}

func encode(c model.Command) frame {
	f := frame{t: c.Type}
	if c.Message != nil {
		f.data = make([]byte, c.Message.SizeVT())
		if _, err := c.Message.MarshalToSizedBufferVT(f.data); err != nil {
			panic(err)
		}
	}
	return f
}

func (w *world) deliverDown(t *rapid.T, u *user, from *[]frame, i int) {
	f := (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	if err := u.m.Command(w.now, f.t, f.data); err != nil {
		t.Fatal(err)
	}
	w.settle(t, u)
}

func (w *world) connect(t *rapid.T, u *user) {
	u.online = true
	u.m.Connected(w.now, u.uid, 0)
	w.settle(t, u)
}

func (w *world) disconnect(t *rapid.T, u *user) {
	u.online = false
	u.up, u.answers, u.pushes = nil, nil, nil
	u.m.Disconnected(w.now)
	w.settle(t, u)
}

func (w *world) pass(t *rapid.T, d time.Duration) {
	w.now = w.now.Add(d)
	for _, u := range w.users {
		stuck := func(f frame) bool { return w.now.Sub(f.at) > stuckMax }
		if slices.ContainsFunc(u.up, stuck) || slices.ContainsFunc(u.answers, stuck) {
			w.disconnect(t, u)
		}
		u.m.Tick(w.now)
		w.settle(t, u)
	}
}

func (w *world) consume(t *rapid.T, u *user) {
	d := u.inHand[0]
	u.inHand = u.inHand[1:]
	u.m.Consumed(w.now, d.ConvId, d.Seq)
	w.settle(t, u)
}

func (w *world) send(t *rapid.T, u *user, uuid string) {
	known, err := u.m.Enqueue(w.now, &clientv1.MessageUp{Uuid: uuid, ReceiverId: w.other(u).uid})
	if err == nil && !known {
		u.sends[uuid]++
	}
	w.settle(t, u)
}

func (w *world) other(u *user) *user {
	if u == w.users[0] {
		return w.users[1]
	}
	return w.users[0]
}

// heal repairs the network and lets time pass until nothing moves any more.
func (w *world) heal(t *rapid.T) {
	for _, u := range w.users {
		if u.online {
			w.disconnect(t, u)
		}
		w.connect(t, u)
	}
	for range 10_000 {
		moved := false
		for _, u := range w.users {
			for len(u.up) > 0 {
				w.deliverUp(u, handled)
				moved = true
			}
			for len(u.answers) > 0 {
				w.deliverDown(t, u, &u.answers, 0)
				moved = true
			}
			for len(u.pushes) > 0 {
				w.deliverDown(t, u, &u.pushes, 0)
				moved = true
			}
			for len(u.inHand) > 0 {
				w.consume(t, u)
				moved = true
			}
		}
		if moved {
			continue
		}
		if !w.skip(t) && !w.resend() {
			return
		}
	}
	t.Fatal("the machines never come to rest")
}

// resend lets the server push again what was not confirmed; false if there is nothing.
func (w *world) resend() bool {
	any := false
	for _, u := range w.users {
		for _, c := range w.server.Unconfirmed(u.uid) {
			u.pushes = append(u.pushes, encode(c))
			any = true
		}
	}
	return any
}

// skip lets time pass to the next deadline; false if there is none.
func (w *world) skip(t *rapid.T) bool {
	var next deadline
	for _, u := range w.users {
		if at, ok := u.m.Deadline(); ok {
			next.note(at)
		}
	}
	if next.at.IsZero() {
		return false
	}
	w.pass(t, max(next.at.Sub(w.now), 0))
	return true
}

// check is what must hold in the end.
func (w *world) check(t *rapid.T) {
	conv := "u:alice:bob"
	stored := w.server.Messages(conv)
	for _, u := range w.users {
		var foreign, own []int64
		for _, d := range stored {
			if d.FromUid == u.uid {
				own = append(own, d.Seq)
			} else {
				foreign = append(foreign, d.Seq)
			}
		}
		if !slices.Equal(u.received[conv], foreign) {
			t.Errorf("%s received %v of %v", u.uid, u.received[conv], foreign)
		}
		reported := slices.Sorted(slices.Values(u.own[conv]))
		for _, seq := range own {
			uuid := stored[seq-1].Uuid
			if s := u.state[uuid]; s != Delivered && s != Failed {
				t.Errorf("%s: %s is stored as %d and confirmed by the other side, but %v here", u.uid, uuid, seq, s)
			}
			if _, found := slices.BinarySearch(reported, seq); !found && u.state[uuid] != Failed {
				t.Errorf("%s: %s was never reported as stored", u.uid, uuid)
			}
		}
		for uuid, n := range u.sends {
			if u.settled[uuid] != n {
				t.Errorf("%s: %s was sent %d times and has %d outcomes", u.uid, uuid, n, u.settled[uuid])
			}
		}
		if marks := u.m.Marks(); marks.Conversations[conv] != int64(len(stored)) {
			t.Errorf("%s: mark %d of %d", u.uid, marks.Conversations[conv], len(stored))
		}
	}
}
