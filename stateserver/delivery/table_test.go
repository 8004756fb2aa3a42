package delivery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/sluice-im/sluice/internal/testenv"
)

// modelEntry is one message that a user owes acks for.
type modelEntry struct {
	conv     string
	seq      int64
	devices  map[string]bool // owing; with unknown, not owing
	unknown  bool
	attempts int
}

func (e *modelEntry) pairs() int {
	if e.unknown {
		return 1
	}
	return len(e.devices)
}

// tableModel does to a map what the scripts do to Redis, for one user.
type tableModel struct {
	table   *table
	rdb     redis.UniversalClient
	uid     string
	entries map[int64]*modelEntry
}

var modelDevices = []string{"a", "b", "c"}

func (m *tableModel) pairs() (n int) {
	for _, e := range m.entries {
		n += e.pairs()
	}
	return n
}

func set(devices []string) map[string]bool {
	out := map[string]bool{}
	for _, d := range devices {
		out[d] = true
	}
	return out
}

func (m *tableModel) enrol(t *rapid.T) {
	before := m.pairs()
	u := &userEnrolments{uid: m.uid}
	for range rapid.IntRange(1, 4).Draw(t, "n") {
		// Old ids come again, as they do after an unknown outcome.
		id := rapid.Int64Range(1, 12).Draw(t, "id") + 1<<60
		if slices.ContainsFunc(u.items, func(e enrolment) bool { return e.msgID == id }) {
			continue
		}
		conv := []string{"u:x:y", "g:z"}[id%2]
		e := enrolment{msgID: id, seq: id - 1<<60, conv: conv, receivedAt: 5, delay: time.Hour}
		old := m.entries[id]
		if rapid.Bool().Draw(t, "unknown") {
			not := rapid.SampledFrom(append(slices.Clone(modelDevices), "")).Draw(t, "not")
			e.owing = owingUnknown(not)
			if old == nil {
				n := &modelEntry{conv: conv, seq: e.seq, devices: map[string]bool{}, unknown: true}
				if not != "" {
					n.devices[not] = true
				}
				m.entries[id] = n
			}
		} else {
			devices := rapid.SliceOfNDistinct(rapid.SampledFrom(modelDevices), 1, 3, rapid.ID).Draw(t, "devices")
			e.owing = owing(devices)
			switch {
			case old == nil:
				m.entries[id] = &modelEntry{conv: conv, seq: e.seq, devices: set(devices)}
			case old.unknown:
				m.know(id, devices)
			default:
				maps.Copy(old.devices, set(devices))
			}
		}
		u.items = append(u.items, e)
	}
	m.table.enrol(context.Background(), []*userEnrolments{u})
	if u.err != nil {
		t.Fatal(u.err)
	}
	dropped, pairs := 0, 0
	for ids := slices.Sorted(maps.Keys(m.entries)); len(ids)-dropped > m.table.perUIDMax; dropped++ {
		pairs += m.entries[ids[dropped]].pairs()
		delete(m.entries, ids[dropped])
	}
	if u.dropped != dropped || u.droppedPairs != pairs || u.added-u.droppedPairs != m.pairs()-before {
		t.Fatalf("added %d, dropped %d (%d pairs), want %d dropped (%d pairs), %d pairs more", u.added, u.dropped, u.droppedPairs, dropped, pairs, m.pairs()-before)
	}
}

// know gives an unknown entry its devices.
func (m *tableModel) know(id int64, online []string) {
	e := m.entries[id]
	owing := set(online)
	for d := range e.devices {
		delete(owing, d)
	}
	e.devices, e.unknown = owing, false
	m.dropIfSettled(id)
}

func (m *tableModel) dropIfSettled(id int64) {
	if m.entries[id].pairs() == 0 {
		delete(m.entries, id)
	}
}

func (m *tableModel) ack(t *rapid.T) {
	var acks []ack
	var want []int
	for range rapid.IntRange(1, 3).Draw(t, "n") {
		a := ack{m.uid, rapid.SampledFrom(modelDevices).Draw(t, "device"), rapid.SampledFrom([]string{"u:x:y", "g:z"}).Draw(t, "conv"), rapid.Int64Range(0, 13).Draw(t, "seq")}
		acks = append(acks, a)
		want = append(want, 0)
	}
	for i, a := range acks {
		for id, e := range m.entries {
			switch {
			case e.conv != a.conv || e.seq > a.seq:
			case e.unknown:
				e.devices[a.device] = true
			case e.devices[a.device]:
				delete(e.devices, a.device)
				want[i]++
				m.dropIfSettled(id)
			}
		}
	}
	for i, s := range m.table.ack(context.Background(), acks) {
		if s.err != nil || len(s.receivedAt) != want[i] {
			t.Fatalf("%+v settled %v, %v, want %d", acks[i], s.receivedAt, s.err, want[i])
		}
	}
}

func (m *tableModel) resolve(t *rapid.T) {
	before := m.pairs()
	u := &userResolutions{uid: m.uid}
	var want []int
	for range rapid.IntRange(1, 4).Draw(t, "n") {
		id := rapid.Int64Range(1, 12).Draw(t, "id") + 1<<60
		r := resolution{msgID: id, mode: rapid.SampledFrom([]mode{modeKeep, modeResend, modeSooner}).Draw(t, "mode"), delay: time.Hour}
		gone := rapid.SliceOfNDistinct(rapid.SampledFrom(modelDevices), 0, 2, rapid.ID).Draw(t, "gone")
		online := rapid.SliceOfNDistinct(rapid.SampledFrom(modelDevices), 0, 3, rapid.ID).Draw(t, "online")
		if len(gone) > 0 {
			r.gone = owing(gone)
		}
		if len(online) > 0 {
			r.online = owing(online)
		}
		all := rapid.IntRange(0, 5).Draw(t, "all") == 0
		if all {
			r.gone = allGone
		}
		u.items = append(u.items, r)
		e := m.entries[id]
		if e == nil {
			want = append(want, -1)
			continue
		}
		if all {
			delete(m.entries, id)
		} else {
			if e.unknown && len(online) > 0 {
				m.know(id, online)
			}
			if m.entries[id] != nil && !e.unknown {
				for _, d := range gone {
					delete(e.devices, d)
				}
				m.dropIfSettled(id)
			}
		}
		if m.entries[id] == nil {
			want = append(want, -1)
			continue
		}
		if r.mode == modeResend {
			e.attempts++
		}
		want = append(want, e.attempts)
	}
	m.table.resolve(context.Background(), []*userResolutions{u})
	if u.err != nil || !slices.Equal(u.resends, want) || u.added-u.offline != m.pairs()-before {
		t.Fatalf("%v: resends %v, want %v; added %d, offline %d, want %d pairs more", u.err, u.resends, want, u.added, u.offline, m.pairs()-before)
	}
	if (u.next == "") != (len(m.entries) == 0) {
		t.Fatalf("next %q with %d entries", u.next, len(m.entries))
	}
}

func (m *tableModel) check(t *rapid.T) {
	n, err := m.table.count(context.Background(), []string{m.uid})
	if err != nil || n != int64(m.pairs()) {
		t.Fatalf("%d pairs, %v, want %d", n, err, m.pairs())
	}
	members, err := m.rdb.ZRange(context.Background(), userKeys(m.uid)[0], 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for id := range m.entries {
		want = append(want, strconv.FormatInt(id, 10))
	}
	slices.Sort(want)
	slices.Sort(members)
	if !slices.Equal(members, want) {
		t.Fatalf("members %v, want %v", members, want)
	}
	if len(want) > 0 {
		if err := m.rdb.ZScore(context.Background(), dueKey(shardOf(m.uid))[0], m.uid).Err(); err != nil {
			t.Fatalf("entries without a hint: %v", err)
		}
	}
	counters := m.rdb.Keys(context.Background(), userKeys(m.uid)[2]+"*").Val()
	for _, c := range counters {
		id, err := strconv.ParseInt(c[len(userKeys(m.uid)[2]):], 10, 64)
		if err != nil || m.entries[id] == nil {
			t.Fatalf("counter %s without an entry", c)
		}
	}
}

func TestTableAgainstModel(t *testing.T) {
	s := testenv.Redis(t)
	rdb := redisClient(t, s.Addr)
	c := slowConfig()
	c.Resend.PerUIDMax = 8
	tab := newTable(rdb, c)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		m := &tableModel{table: tab, rdb: rdb, uid: fmt.Sprintf("u%d", run), entries: map[int64]*modelEntry{}}
		t.Repeat(map[string]func(*rapid.T){"enrol": m.enrol, "ack": m.ack, "resolve": m.resolve, "": m.check})
	})
}

func TestTakeHoldsAndEnds(t *testing.T) {
	s := testenv.Redis(t)
	rdb := redisClient(t, s.Addr)
	tab := newTable(rdb, fastConfig())
	ctx := context.Background()
	u := &userEnrolments{uid: "bob"}
	for id := int64(1); id <= 3; id++ {
		u.items = append(u.items, enrolment{msgID: id, seq: id, conv: "g:x", owing: ",d,", delay: time.Millisecond})
	}
	tab.enrol(ctx, []*userEnrolments{u})
	var hints []hint
	eventually(t, "due", func() bool {
		var err error
		hints, _, err = tab.due(ctx, []int{shardOf("bob")}, 10)
		return err == nil && len(hints) == 1
	})
	var got []taken
	eventually(t, "two taken", func() bool {
		got = tab.take(ctx, []string{"bob"}, 2, time.Hour, 3)
		return len(got[0].entries) == 2
	})
	if again := tab.take(ctx, []string{"bob"}, 2, time.Hour, 3)[0]; len(again.entries) != 1 || again.next == "" {
		t.Fatalf("the second look took %v", again.entries)
	}
	if again := tab.take(ctx, []string{"bob"}, 2, time.Hour, 3)[0]; len(again.entries) != 0 {
		t.Fatalf("taken twice: %v", again.entries)
	}
	// An enrolment between the look and the raise touches the hint: it must stay where a look will find it.
	u.items = u.items[:1]
	tab.enrol(ctx, []*userEnrolments{u})
	if err := tab.raise(ctx, hints, []string{""}); err != nil {
		t.Fatal(err)
	}
	if err := rdb.ZScore(ctx, dueKey(shardOf("bob"))[0], "bob").Err(); err != nil {
		t.Fatalf("the hint of an enrolment in between is gone: %v", err)
	}
	hints, _, _ = tab.due(ctx, []int{shardOf("bob")}, 10)
	if err := tab.raise(ctx, hints, []string{"99999999999999"}); err != nil {
		t.Fatal(err)
	}
	if s := rdb.ZScore(ctx, dueKey(shardOf("bob"))[0], "bob").Val(); s != 99999999999999 {
		t.Fatalf("untouched hint at %v", s)
	}
	if s := rdb.ZScore(ctx, dueKey(shardOf("bob"))[0], "bob").Val(); s == 0 {
		t.Fatal("gone")
	}
}
