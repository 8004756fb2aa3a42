package conformance

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// slowDial connects with a receive buffer that does not grow, so that a client that does not read is soon felt. It is
// not small: below the loopback's segments of 64 KiB only the persist timer moves bytes.
func (f *fixture) slowDial() *net.TCPConn {
	f.Helper()
	c := f.dial()
	if err := c.SetReadBuffer(128 << 10); err != nil {
		f.Fatal(err)
	}
	return c
}

// testOutboxBound pushes to a client that does not read until the bound is reached: what it gets is a prefix without
// holes, and others are not disturbed.
func testOutboxBound(t *testing.T, newEngine NewEngine) {
	const bound = 100_000
	ids := make(chan poller.ID, 2)
	f := start(t, newEngine, poller.Config{OutboxBytes: bound}, opened(ids))
	c := f.slowDial()
	id := <-ids
	neighbour := f.dial()
	<-ids
	n := 0
	for ; ; n += 250 {
		s := f.Conns().Queue(id, numbers(n, n+250))
		if s == poller.StatusOverflow {
			break
		}
		if s == poller.StatusGone {
			t.Fatal("gone before the overflow")
		}
		f.Conns().Flush(id)
		if q := f.Stats().OutboxBytes; q > bound {
			t.Fatalf("%d bytes queued, bound %d", q, bound)
		}
		if n%5000 == 0 {
			f.write(neighbour, []byte("x"))
			f.read(neighbour, 1)
		}
	}
	if s := f.Conns().Queue(id, []byte("late")); s != poller.StatusGone {
		t.Errorf("Queue after the overflow: status %d", s)
	}
	f.eventually("the overflow is named", func() bool { return f.h.count(poller.CauseOutboxFull) == 1 })
	got, _ := io.ReadAll(c)
	if want := numbers(0, n); !bytes.HasPrefix(want, got) {
		t.Error("the slow consumer got something else than a prefix")
	}
	f.eventually("the gauge is back", func() bool { return f.Stats().OutboxBytes == 0 })
}

// testOverflowInLease queues more than the bound under the lease.
func testOverflowInLease(t *testing.T, newEngine NewEngine) {
	var status atomic.Int64
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		status.Store(int64(c.Queue(make([]byte, 50_001))))
		return len(in.Bytes), poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{OutboxBytes: 50_000}, h)
	f.write(f.dial(), []byte("x"))
	f.eventually("the overflow is named", func() bool { return h.count(poller.CauseOutboxFull) == 1 })
	if s := poller.Status(status.Load()); s != poller.StatusOverflow {
		t.Errorf("status %d", s)
	}
}

// testLargeReplies queues much in many pieces under one lease, and reads it back slowly.
func testLargeReplies(t *testing.T, newEngine NewEngine) {
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		for i := range 100 {
			c.Queue(numbers(i*500, (i+1)*500))
		}
		if c.Queued() == 0 {
			t.Error("nothing queued under the lease")
		}
		return len(in.Bytes), poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{}, h)
	c := f.slowDial()
	want := numbers(0, 50_000)
	for range 10 {
		f.write(c, []byte("x"))
		if got := f.read(c, len(want)); !bytes.Equal(got, want) {
			t.Fatal("replies differ")
		}
	}
}

// testWriteStall shows that a consumer that reads nothing is closed after WriteTimeout, and one that is slow is not.
func testWriteStall(t *testing.T, newEngine NewEngine) {
	const limit, piece, pieces = time.Second, 100_000, 12
	ids := make(chan poller.ID, 2)
	f := start(t, newEngine, poller.Config{WriteTimeout: limit, Tick: 10 * time.Millisecond, OutboxBytes: 4 << 20}, opened(ids))
	f.slowDial() // reads nothing
	stuckID := <-ids
	slow := f.slowDial()
	slowID := <-ids
	want := numbers(0, 500_000)
	begun := time.Now()
	for _, id := range []poller.ID{stuckID, slowID} {
		if f.Conns().Queue(id, want) != poller.StatusQueued || f.Conns().Flush(id) != poller.StatusQueued {
			t.Fatal("2 MB did not fill the kernel")
		}
	}
	got := make([]byte, len(want))
	for have := 0; have < len(got); {
		n, err := io.ReadFull(slow, got[have:min(have+piece, len(got))])
		if have += n; err != nil {
			t.Fatalf("slow consumer cut after %d bytes and %v: %v", have, time.Since(begun), err)
		}
		if have < pieces*piece {
			<-time.After(limit / 8)
		}
	}
	if !bytes.Equal(got, want) {
		t.Error("the slow consumer got other bytes")
	}
	f.eventually("the stall is named", func() bool { return f.h.count(poller.CauseWriteStalled) == 1 })
	if since := time.Since(begun); since < limit {
		t.Errorf("cut after %v", since)
	}
}

// testParkOutbox shows that a connection that was parked for its full outbox is woken when the client has read.
func testParkOutbox(t *testing.T, newEngine NewEngine) {
	const bound = 1 << 20
	var parked atomic.Int64
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		n := 0
		for ; n < len(in.Bytes); n++ {
			if c.Queued() > bound/4 {
				parked.Add(1)
				return n, poller.Park
			}
			c.Queue(bytes.Repeat(in.Bytes[n:n+1], 10_000))
		}
		return n, poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{OutboxBytes: bound}, h)
	c := f.slowDial()
	ask := bytes.Repeat([]byte("0123456789"), 100)
	f.write(c, ask)
	f.eventually("it parks", func() bool { return f.Stats().Parked == 1 })
	for i, want := range ask {
		if got := f.read(c, 10_000); got[0] != want || got[9999] != want {
			t.Fatalf("reply %d differs", i)
		}
	}
	if parked.Load() < 2 {
		t.Errorf("parked %d times", parked.Load())
	}
}

// testHeldInput shows that a connection whose client does not read its replies is not read either, although its handler
// always says Rearm.
func testHeldInput(t *testing.T, newEngine NewEngine) {
	const bound = 1 << 20
	var seen atomic.Int64
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		seen.Add(int64(len(in.Bytes)))
		c.Queue(in.Bytes)
		return len(in.Bytes), poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{OutboxBytes: bound}, h)
	c := f.slowDial()
	want := numbers(0, 4<<20)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(want); err != nil {
			t.Errorf("write: %v", err)
		}
	})
	last := int64(-1)
	f.eventually("reading stops", func() bool {
		now := seen.Load()
		same := now == last && now > 0 && f.Stats().OutboxBytes > 0
		last = now
		return same
	})
	if q := f.Stats().OutboxBytes; q > bound/2 {
		t.Errorf("%d bytes queued of a client that does not read", q)
	}
	got := f.read(c, len(want))
	wg.Wait()
	if !bytes.Equal(got, want) {
		t.Error("echo differs")
	}
}

// testPushers lets many goroutines push numbered messages to one connection: each message arrives whole, and those of
// one goroutine in order.
func testPushers(t *testing.T, newEngine NewEngine) {
	const pushers, each, size = 16, 500, 64
	ids := make(chan poller.ID, 1)
	f := start(t, newEngine, poller.Config{OutboxBytes: pushers * each * size * 2}, opened(ids))
	c := f.dial()
	id := <-ids
	var wg sync.WaitGroup
	for p := range pushers {
		wg.Go(func() {
			msg := bytes.Repeat([]byte{byte(p)}, size)
			for i := range each {
				binary.BigEndian.PutUint32(msg[1:], uint32(i))
				if s := f.Conns().Queue(id, msg); s != poller.StatusQueued && s != poller.StatusWritten {
					t.Errorf("status %d", s)
					return
				}
				if i%3 == 0 || i == each-1 {
					f.Conns().Flush(id)
				}
			}
		})
	}
	var next [pushers]uint32
	for range pushers * each {
		msg := f.read(c, size)
		p, i := msg[0], binary.BigEndian.Uint32(msg[1:])
		if int(p) >= pushers || i != next[p] || msg[size-1] != p {
			t.Fatalf("pusher %d: message %d instead of %d", p, i, next[p])
		}
		next[p]++
	}
	wg.Wait()
}
