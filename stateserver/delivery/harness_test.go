package delivery

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/internal/testenv/leaks"
	"github.com/sluice-im/sluice/stateserver/store"
)

func TestMain(m *testing.M) {
	logging.Disable() // killed servers are part of the tests
	leaks.Main(m)
}

// waitMax bounds every wait for a condition; it is only reached when a test fails.
const waitMax = 60 * time.Second

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(waitMax)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", waitMax, what)
		}
		time.Sleep(2 * time.Millisecond) // the pause between two looks at a condition with a deadline
	}
}

// fastConfig has the shape of the real schedule at about a hundredth of its length.
func fastConfig() Config {
	c := Default()
	c.Resend.AckTimeout = 100 * time.Millisecond
	c.Resend.Backoff = []time.Duration{20 * time.Millisecond, 60 * time.Millisecond, 160 * time.Millisecond}
	c.Resend.ScanEvery = 5 * time.Millisecond
	// What a busy machine delays is no fault: tests that need a time-out set their own.
	c.LookupTimeout = waitMax
	c.RedisTimeout = waitMax
	c.Push.Timeout = waitMax
	return c
}

// slowConfig never resends within a test.
func slowConfig() Config {
	c := fastConfig()
	c.Resend.AckTimeout = time.Hour
	return c
}

func redisClient(t testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialTimeout: time.Second})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// world is what surrounds one or more Deliveries: Redis, the store, the route table, the gateways.
type world struct {
	t     testing.TB
	redis *testenv.Server
	rdb   *redis.Client
	*fakeRoutes
	*fakeStore
}

func newWorld(t testing.TB) *world {
	s := testenv.Redis(t)
	return &world{t: t, redis: s, rdb: redisClient(t, s.Addr), fakeRoutes: newFakeRoutes(), fakeStore: newFakeStore()}
}

// node is one Delivery.
type node struct {
	*Delivery
	w        *world
	registry *prometheus.Registry
	marks    *fakeMarks
	stop     func()

	mu        sync.Mutex
	lostCalls int
}

// node starts one.
func (w *world) node(c Config, change ...func(*Deps)) *node {
	w.t.Helper()
	n := w.idle(c, change...)
	n.run()
	return n
}

// idle builds one that does not run yet.
func (w *world) idle(c Config, change ...func(*Deps)) *node {
	w.t.Helper()
	n := &node{w: w, registry: prometheus.NewRegistry(), marks: &fakeMarks{}}
	deps := Deps{Redis: w.rdb, Routes: w.fakeRoutes, Messages: w.fakeStore, Marks: n.marks, Registerer: n.registry, Log: testLog(),
		RedisLost: func(context.Context) { n.mu.Lock(); n.lostCalls++; n.mu.Unlock() }}
	for _, f := range change {
		f(&deps)
	}
	d, err := New(c, deps)
	if err != nil {
		w.t.Fatal(err)
	}
	n.Delivery = d
	return n
}

func (n *node) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.Run(ctx); err != nil {
			n.w.t.Error(err)
		}
	}()
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	n.w.t.Cleanup(n.stop)
}

func testLog() *slog.Logger {
	if os.Getenv("SLUICE_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func (n *node) lostCount() int { n.mu.Lock(); defer n.mu.Unlock(); return n.lostCalls }

// send stores messages and delivers them.
func (n *node) send(tasks ...Task) {
	n.w.t.Helper()
	for _, t := range tasks {
		n.w.add(t.Message)
		n.Begin([]int64{t.Message.MsgID})
	}
	if err := n.Enqueue(context.Background(), tasks); err != nil {
		n.w.t.Fatal(err)
	}
}

// metric reads one value; label is that of a metric with a label, or empty.
func (n *node) metric(name, label string) float64 {
	n.w.t.Helper()
	families, err := n.registry.Gather()
	if err != nil {
		n.w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label }) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	n.w.t.Fatalf("no metric %s %s", name, label)
	return 0
}

func (n *node) pairs(result string) int { return int(n.metric("sluice_delivery_pairs_total", result)) }

// pending counts what Redis holds, by itself.
func (w *world) pending() int {
	w.t.Helper()
	n := 0
	keys, err := w.rdb.Keys(context.Background(), "unack:meta:*").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, key := range keys {
		all, err := w.rdb.HGetAll(context.Background(), key).Result()
		if err != nil {
			w.t.Fatal(err)
		}
		for id, value := range all {
			e, err := parseEntry(id, 0, value)
			if err != nil {
				w.t.Fatal(err)
			}
			n += e.pairs()
		}
	}
	return n
}

// conserved is the equation of the guarantees, over all nodes and what Redis really holds.
func (w *world) conserved(nodes ...*node) (string, bool) {
	sums := map[string]int{}
	for _, n := range nodes {
		for _, r := range []string{pairEnrolled, pairAcked, pairExhausted, pairOverflowed, pairOffline, pairLost} {
			sums[r] += n.pairs(r)
		}
	}
	pending := w.pending()
	ended := sums[pairAcked] + sums[pairExhausted] + sums[pairOverflowed] + sums[pairOffline] + sums[pairLost]
	return fmt.Sprintf("%v pending %d", sums, pending), sums[pairEnrolled] == ended+pending
}

func (w *world) checkConserved(nodes ...*node) {
	w.t.Helper()
	var last string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("books: %s", last)
		}
	}()
	eventually(w.t, "conservation", func() (ok bool) {
		last, ok = w.conserved(nodes...)
		return ok
	})
}

func message(id int64, from, to string, seq int64) store.Message {
	conv := "u:" + min(from, to) + ":" + max(from, to)
	return store.Message{MsgID: id, ConvID: conv, Seq: seq, FromUID: from, UUID: "uuid-" + strconv.FormatInt(id, 10), ReceiverID: to,
		Type: 1, Content: "hello", Body: []byte{0, 1, 2}, ServerAt: 1700000000000, ReceivedAt: time.Now().UnixMilli()}
}

func to(id int64, receiver string, seq int64) Task {
	return Task{Message: message(id, "alice", receiver, seq), Receivers: []string{receiver}}
}

func scores(t testing.TB, rdb *redis.Client, uid string) map[string]float64 {
	t.Helper()
	z, err := rdb.ZRangeWithScores(context.Background(), userKeys(uid)[0], 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, m := range z {
		out[m.Member.(string)] = m.Score
	}
	return out
}

func uids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "u" + strconv.Itoa(i)
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
