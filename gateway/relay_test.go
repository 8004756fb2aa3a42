package gateway

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-im/sluice/stateclient"
	"github.com/sluice-im/sluice/stateclient/routes"
)

// fakeRelay holds what was submitted until a test answers it.
type fakeRelay struct {
	sink stateclient.Sink
	room func([]uint64)

	mu sync.Mutex
	// Guarded by mu.
	held    []stateclient.Uplink
	seen    []stateclient.Uplink
	places  int // -1 = no bound
	refused map[uint64]bool
	down    bool
	// echo, when set, answers every frame at once.
	echo func(up *stateclient.Uplink) stateclient.Downlink

	replies *gather[stateclient.Downlink]
	done    chan struct{}
}

func newFakeRelay() *fakeRelay {
	return &fakeRelay{places: -1, refused: make(map[uint64]bool), replies: newGather[stateclient.Downlink](1 << 20), done: make(chan struct{})}
}

func (r *fakeRelay) start(c stateclient.Config, s stateclient.Sink, _ stateclient.Deps) (stateclient.Relay, error) {
	r.sink, r.room = s, c.Room
	go r.run()
	return r, nil
}

func (r *fakeRelay) Submit(pass []stateclient.Uplink, taken []bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	refusedNow := make(map[uint64]bool)
	for i, up := range pass {
		full := r.places >= 0 && len(r.held) >= r.places
		taken[i] = !full && !refusedNow[up.Peer.ConnID]
		if !taken[i] {
			refusedNow[up.Peer.ConnID], r.refused[up.Peer.ConnID] = true, true
			continue
		}
		seen := up
		seen.Payload = bytes.Clone(up.Payload) // the gateway's again once it is answered
		r.seen = append(r.seen, seen)
		if up.Kind != stateclient.KindFrame {
			r.replies.put(stateclient.Downlink{ConnID: up.Peer.ConnID, Seq: up.Seq, Kind: up.Kind})
			continue
		}
		r.held = append(r.held, up)
	}
	if r.echo != nil {
		for _, up := range r.held {
			r.replies.put(r.echo(&up))
		}
		r.held = nil
	}
}

// run passes answers on, in order, until Close.
func (r *fakeRelay) run() {
	defer close(r.done)
	var batch []stateclient.Downlink
	for {
		var ok bool
		if batch, ok = r.replies.take(batch[:0], 64); !ok {
			return
		}
		r.sink.Answers(batch)
	}
}

// answer ends the oldest uplink that is held.
func (r *fakeRelay) answer(outcome stateclient.Outcome, payload []byte, retryAfter time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) == 0 {
		return false
	}
	up := r.held[0]
	r.held = r.held[1:]
	r.replies.put(stateclient.Downlink{ConnID: up.Peer.ConnID, Seq: up.Seq, Kind: up.Kind, Outcome: outcome,
		Payload: payload, RetryAfter: retryAfter})
	return true
}

// open sets the bound, and says that there is room.
func (r *fakeRelay) open(places int) {
	r.mu.Lock()
	r.places = places
	var ids []uint64
	for id := range r.refused {
		ids = append(ids, id)
	}
	clear(r.refused)
	r.mu.Unlock()
	r.room(ids)
}

// took is what was submitted and taken since the last call.
func (r *fakeRelay) took() []stateclient.Uplink {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

var errFake = errors.New("fake: not there")

func (r *fakeRelay) Authenticate(context.Context, stateclient.Login) (stateclient.Grant, error) {
	return stateclient.Grant{}, errFake
}

func (r *fakeRelay) Ready() bool { return !r.down }

func (r *fakeRelay) Close() {
	r.mu.Lock()
	for _, up := range r.held {
		r.replies.put(stateclient.Downlink{ConnID: up.Peer.ConnID, Seq: up.Seq, Kind: up.Kind, Outcome: stateclient.Broken})
	}
	r.held = nil
	r.mu.Unlock()
	r.replies.close()
	<-r.done
}

// fakeRoutes is a route table in memory, with a lease that stands as long as the table answers.
type fakeRoutes struct {
	mu sync.Mutex
	// Guarded by mu.
	held   map[string]routes.Route // by uid and device
	epoch  int64
	down   bool
	onLost func()
	// hold, when set, delays the answer of every Claim, which has written already, until it is closed.
	hold chan struct{}
}

func newFakeRoutes() *fakeRoutes { return &fakeRoutes{held: make(map[string]routes.Route)} }

func (t *fakeRoutes) open(o RouteOptions) (RouteTable, RouteLease, func(), error) {
	t.onLost = o.OnLost
	return t, fakeLease{t}, func() {}, nil
}

func (t *fakeRoutes) Claim(_ context.Context, claims []routes.Claim) []routes.ClaimResult {
	t.mu.Lock()
	hold := t.hold
	defer func() {
		t.mu.Unlock()
		if hold != nil {
			<-hold
		}
	}()
	results := make([]routes.ClaimResult, len(claims))
	for i, c := range claims {
		if t.down {
			results[i].Err = errFake
			continue
		}
		t.epoch++
		key := c.Route.UID + "/" + c.Route.DeviceID
		if old, ok := t.held[key]; ok && (old.ConnID != c.Route.ConnID || old.Incarnation != c.Route.Incarnation) {
			results[i].Displaced = []routes.Route{old}
		}
		c.Route.Epoch = t.epoch
		t.held[key] = c.Route
		results[i].Epoch = t.epoch
	}
	return results
}

func (t *fakeRoutes) Release(_ context.Context, gone []routes.Route) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down {
		return errFake
	}
	for _, r := range gone {
		key := r.UID + "/" + r.DeviceID
		if held, ok := t.held[key]; ok && held.ConnID == r.ConnID && held.Incarnation == r.Incarnation {
			delete(t.held, key)
		}
	}
	return nil
}

func (t *fakeRoutes) Restore(_ context.Context, held []routes.Route) []routes.RestoreResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	results := make([]routes.RestoreResult, len(held))
	for i, r := range held {
		key := r.UID + "/" + r.DeviceID
		old, ok := t.held[key]
		switch {
		case t.down:
			results[i] = routes.Unknown
		case !ok:
			t.held[key] = r
			results[i] = routes.Restored
		case old.Epoch > r.Epoch:
			results[i] = routes.LostToNewer
		}
	}
	return results
}

func (t *fakeRoutes) Find(_ context.Context, uids []string) (map[string][]routes.Route, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down {
		return nil, errFake
	}
	found := make(map[string][]routes.Route)
	for _, r := range t.held {
		for _, uid := range uids {
			if r.UID == uid {
				found[uid] = append(found[uid], r)
			}
		}
	}
	return found, nil
}

func (t *fakeRoutes) Remove(_ context.Context, stale []routes.Route) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down {
		return errFake
	}
	for _, r := range stale {
		if key := r.UID + "/" + r.DeviceID; t.held[key] == r {
			delete(t.held, key)
		}
	}
	return nil
}

// fakeLease stands as long as its table answers.
type fakeLease struct{ t *fakeRoutes }

func (l fakeLease) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (l fakeLease) Release(context.Context) error { return nil }

func (l fakeLease) Healthy() bool {
	t := l.t
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.down
}

func (t *fakeRoutes) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.held)
}
