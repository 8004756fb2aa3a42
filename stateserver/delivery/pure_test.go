package delivery

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestScheduleIsTheOneOfTheTimeBudget(t *testing.T) {
	s := newSchedule(Default().Resend)
	const middle = 0.5 // no jitter
	at := s.pushed(middle)
	got := []time.Duration{at}
	for n := 1; n <= 3; n++ {
		at += s.resent(n, middle)
		got = append(got, at)
	}
	want := []time.Duration{11 * time.Second, 15 * time.Second, 31 * time.Second, 41 * time.Second}
	if !slices.Equal(got, want) {
		t.Fatalf("resends, then the end, at %v, want %v", got, want)
	}
	if got := s.failed(middle); got != time.Second {
		t.Fatalf("after a failed push: %v", got)
	}
}

func TestScheduleKeepsToItsJitter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Default().Resend
		c.Max = rapid.IntRange(0, resendsMax).Draw(t, "max")
		s := newSchedule(c)
		r := rapid.Float64Range(0, 0.999999).Draw(t, "r")
		n := rapid.IntRange(1, resendsMax).Draw(t, "n")
		for _, f := range []func(float64) time.Duration{s.pushed, s.failed, func(r float64) time.Duration { return s.resent(n, r) }} {
			d, middle := f(r), f(0.5)
			if d < middle*9/10 || d > middle*11/10 {
				t.Fatalf("%v is more than a tenth away from %v", d, middle)
			}
		}
	})
}

func TestMarkIsTheHighestWithAllBelowSettled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMarks()
		now := time.Unix(0, 0)
		open := map[int64]bool{}
		var numbered []int64 // begun, ascending: numbering and Begin are under one lock
		next, mark := int64(0), int64(0)
		steps := rapid.IntRange(1, 200).Draw(t, "steps")
		for range steps {
			if len(open) == 0 || rapid.Bool().Draw(t, "begin") {
				var ids []int64
				for range rapid.IntRange(1, 5).Draw(t, "ids") {
					next += rapid.Int64Range(1, 100).Draw(t, "gap")
					ids = append(ids, next)
					open[next] = true
				}
				numbered = append(numbered, ids...)
				// Within a batch the order is free.
				if late := m.begin(rapid.Permutation(ids).Draw(t, "order"), now); late != 0 {
					t.Fatalf("%d late", late)
				}
			} else {
				i := rapid.IntRange(0, len(numbered)-1).Draw(t, "settle")
				delete(open, numbered[i])
				m.settle(numbered[i], -numbered[i]) // ids of others are ignored
			}
			want := int64(0)
			for _, id := range numbered {
				if open[id] {
					break
				}
				want = id
			}
			got := m.current()
			if got < want || got < mark {
				t.Fatalf("mark %d, want at least %d, was %d", got, want, mark)
			}
			for id := range open {
				if id <= got {
					t.Fatalf("mark %d passed %d, which is open", got, id)
				}
			}
			mark = got
			if lag := m.lag(now.Add(time.Second)); (lag > 0) != (len(open) > 0) {
				t.Fatalf("lag %v with %d open", lag, len(open))
			}
		}
	})
}

func TestMarkTakesNoMoreRoomThanWhatIsOpen(t *testing.T) {
	m := newMarks()
	now := time.Unix(0, 0)
	m.begin([]int64{1}, now) // never settled
	for id := int64(2); id < 200_000; id++ {
		m.begin([]int64{id}, now)
		m.settle(id)
	}
	if len(m.ids) > 2*compactMin || m.current() != 0 {
		t.Fatalf("%d ids kept, mark %d", len(m.ids), m.current())
	}
	m.settle(1)
	if m.current() != 199_999 {
		t.Fatalf("mark %d", m.current())
	}
	if late := m.begin([]int64{5}, now); late != 1 || m.current() != 199_999 {
		t.Fatalf("an id below the mark: late %d, mark %d", late, m.current())
	}
}

func TestEntryRoundTrip(t *testing.T) {
	device := rapid.StringMatching(`[A-Za-z0-9_.@-]{1,20}`)
	rapid.Check(t, func(t *rapid.T) {
		devices := rapid.SliceOfNDistinct(device, 1, 5, rapid.ID).Draw(t, "devices")
		e, err := parseEntry("9223372036854775807", 2, "7 1700000000000 u:a:b "+owing(devices))
		if err != nil || !slices.Equal(e.devices, devices) || e.unknown || e.pairs() != len(devices) || e.seq != 7 || e.conv != "u:a:b" || e.resends != 2 {
			t.Fatalf("%+v, %v", e, err)
		}
		e, err = parseEntry("1", 0, "7 0 g:x "+owingUnknown(devices[0]))
		if err != nil || !e.unknown || e.pairs() != 1 {
			t.Fatalf("%+v, %v", e, err)
		}
		push, gone := e.split(devices)
		if !slices.Equal(push, devices[1:]) || gone != nil {
			t.Fatalf("push %v, gone %v", push, gone)
		}
	})
	for _, bad := range []string{"", "1 2 3", "x 2 c ,d,", "1 x c ,d,", "1 2 c ,d, e"} {
		if _, err := parseEntry("1", 0, bad); !errors.Is(err, errBadEntry) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestQueueBoundsAndOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		countMax, costMax := rapid.IntRange(1, 5).Draw(t, "count"), rapid.IntRange(1, 20).Draw(t, "cost")
		q := newQueue[int](countMax, costMax)
		var want []int
		costs := map[int]int{}
		total := 0
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "offer") {
				cost := rapid.IntRange(0, 25).Draw(t, "c")
				fits := len(want) == 0 || len(want) < countMax && total+cost <= costMax
				if q.offer(i, cost) != fits {
					t.Fatalf("offer of %d into %d items of %d: want %v", cost, len(want), total, fits)
				}
				if fits {
					want, costs[i], total = append(want, i), cost, total+cost
				}
				continue
			}
			got, open := q.poll(nil, 3, 10)
			if !open || len(got) > 3 || len(got) == 0 != (len(want) == 0) || !slices.Equal(got, want[:len(got)]) {
				t.Fatalf("polled %v of %v", got, want)
			}
			for _, v := range got {
				total -= costs[v]
			}
			want = want[len(got):]
		}
		if q.len() != len(want) {
			t.Fatalf("%d items, want %d", q.len(), len(want))
		}
	})
}

func TestQueuePutWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue[int](2, 100)
		done := make(chan int, 4)
		for i := range 4 {
			go func() {
				if err := q.put(t.Context(), i, 1); err != nil {
					t.Error(err)
				}
				done <- i
			}()
			synctest.Wait()
		}
		if len(done) != 2 {
			t.Fatalf("%d puts returned, want 2", len(done))
		}
		if got, _ := q.poll(nil, 1, 100); !slices.Equal(got, []int{0}) {
			t.Fatal(got)
		}
		synctest.Wait()
		if len(done) != 3 {
			t.Fatalf("%d puts returned, want 3", len(done))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.put(ctx, 9, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		q.poll(nil, 2, 100)
		synctest.Wait()
		q.close()
		q.close()
		if err := q.put(t.Context(), 9, 1); !errors.Is(err, ErrStopped) || q.offer(9, 1) {
			t.Fatal("a closed queue took something")
		}
		q.force(9, 1)
		if got, open := q.poll(nil, 9, 100); len(got) != 1 || open {
			t.Fatalf("left %v, open %v", got, open)
		}
	})
}

func TestRedisLostIsPacedAndNeverOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var calls []time.Duration
		start := time.Now()
		d := &Delivery{recover: make(chan struct{}, 1), books: &books{}, warnings: newWarnings(testLog()), log: testLog()}
		d.deps.RedisLost = func(context.Context) { calls = append(calls, time.Since(start)) }
		done := make(chan struct{})
		go func() { defer close(done); d.runRecovery(ctx) }()
		synctest.Wait()
		for range 10 {
			d.lost("test")
			synctest.Wait()
		}
		<-time.After(time.Minute)
		cancel()
		<-done
		if !slices.Equal(calls, []time.Duration{0, recoverEvery}) {
			t.Fatalf("called at %v", calls)
		}
	})
}

func TestMarkIsSavedWhenItMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		saved := &fakeMarks{}
		d := &Delivery{marks: newMarks(), warnings: newWarnings(testLog()), log: testLog()}
		d.deps.Marks = saved
		done := make(chan struct{})
		go func() { defer close(done); d.runMarks(ctx) }()
		d.Begin([]int64{1, 2, 3})
		d.Abandon([]int64{1})
		d.Abandon([]int64{2})
		<-time.After(10 * saveEvery)
		saved.mu.Lock()
		saved.err = errBroken
		saved.mu.Unlock()
		d.Abandon([]int64{3})
		<-time.After(2 * saveEvery)
		saved.mu.Lock()
		saved.err = nil
		saved.mu.Unlock()
		<-time.After(2 * saveEvery)
		cancel()
		<-done
		if !slices.Equal(saved.saved, []int64{2, 3}) {
			t.Fatalf("saved %v: once when it moved, and again after an error", saved.saved)
		}
	})
}

func TestAuditBelievesOnlyWhatStaysWhileAllHaveTold(t *testing.T) {
	var a audit
	for i, look := range []struct {
		pending, counted, now, since int64
		difference                   int64
		certain                      bool
	}{
		{10, 7, 100, 90, 0, false},
		{11, 7, 110, 109, 0, false}, // something moved: a new first look
		{11, 8, 120, 119, 0, false},
		{11, 8, 130, 0, 3, false},   // somebody awaits answers
		{11, 8, 140, 120, 3, false}, // somebody has not told since
		{11, 8, 150, 121, 3, true},
	} {
		difference, certain := a.look(look.pending, look.counted, look.now, look.since)
		if certain != look.certain || difference != look.difference {
			t.Errorf("look %d: %d, %v", i, difference, certain)
		}
	}
}

func TestConfigNamesTheBadKey(t *testing.T) {
	for key, change := range map[string]func(*Config){
		"resend.ack_timeout":       func(c *Config) { c.Resend.AckTimeout = 0 },
		"resend.backoff":           func(c *Config) { c.Resend.Backoff = nil },
		"resend.max":               func(c *Config) { c.Resend.Max = 11 },
		"resend.per_uid_max":       func(c *Config) { c.Resend.PerUIDMax = 0 },
		"resend.group_members_max": func(c *Config) { c.Resend.GroupMembersMax = -1 },
		"resend.scan_every":        func(c *Config) { c.Resend.ScanEvery = -time.Second },
		"push.timeout":             func(c *Config) { c.Push.Timeout = 0 },
		"lookup_timeout":           func(c *Config) { c.LookupTimeout = 0 },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	c := Default()
	c.Resend.Backoff = []time.Duration{time.Second, 0}
	if err := c.Validate(); err == nil {
		t.Error("a backoff of 0 was taken")
	}
}
