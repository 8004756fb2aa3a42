package conformance

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/sluice-im/sluice/poller"
)

// numbers is a stream of consecutive 4-byte numbers.
func numbers(from, to int) []byte {
	p := make([]byte, 0, 4*(to-from))
	for i := from; i < to; i++ {
		p = binary.BigEndian.AppendUint32(p, uint32(i))
	}
	return p
}

func testEcho(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{}, &handler{})
	c := f.dial()
	for i := range 100 {
		want := numbers(i, i+1+i*7)
		f.write(c, want)
		if got := f.read(c, len(want)); !bytes.Equal(got, want) {
			t.Fatalf("round %d: echo differs", i)
		}
	}
	if s := f.Stats(); s.Open[0] != 1 || s.Opened[0] != 1 || s.Events == 0 || s.Passes == 0 {
		t.Errorf("stats %+v", s)
	}
	_ = c.Close()
	f.eventually("the peer's close is seen", func() bool { return f.h.count(poller.CausePeerClosed) == 1 })
}

// testSerial floods many connections from the client and with wakes and pushes from other goroutines; the handler's own
// watch reports overlaps, and the bytes must come back in order.
func testSerial(t *testing.T, newEngine NewEngine) {
	clients, total := 16, 20000
	if testing.Short() {
		total = 2000
	}
	var ids sync.Map
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		ids.Store(c.ID(), true)
		n := len(in.Bytes) &^ 3
		c.Queue(in.Bytes[:n])
		if len(in.Bytes)%8 == 4 {
			return n, poller.Park
		}
		return n, poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{}, h)
	stop := make(chan struct{})
	var others, wg sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ids.Range(func(id, _ any) bool {
					f.Conns().Wake(id.(poller.ID))
					f.Conns().Flush(id.(poller.ID))
					return true
				})
				pause()
			}
		})
	}
	for range clients {
		c := f.dial()
		wg.Go(func() {
			for p := numbers(0, total); len(p) > 0; {
				n := min(len(p), 1+len(p)%4001)
				if _, err := c.Write(p[:n]); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				p = p[n:]
			}
		})
		wg.Go(func() {
			got := make([]byte, 4*total)
			for have := 0; have < len(got); {
				n, err := c.Read(got[have:])
				if err != nil {
					t.Errorf("read after %d: %v", have, err)
					return
				}
				have += n
			}
			if !bytes.Equal(got, numbers(0, total)) {
				t.Error("bytes came back in another order")
			}
		})
	}
	wg.Wait()
	close(stop)
	others.Wait()
}

// testLeftover sends a frame much larger than one read, in pieces of many sizes: the handler sees it grow.
func testLeftover(t *testing.T, newEngine NewEngine) {
	const frame = 100_000
	seen := 0
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		if len(in.Bytes) < seen {
			t.Errorf("had %d bytes, now %d", seen, len(in.Bytes))
		}
		seen = len(in.Bytes)
		if len(in.Bytes) < frame {
			return 0, poller.Rearm
		}
		seen = 0
		c.Queue(in.Bytes[:frame])
		return frame, poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{}, h)
	c := f.dial()
	for _, piece := range []int{1777, 16384, 50_001, frame, 2 * frame} {
		want := append(numbers(piece, piece+frame/4), numbers(0, frame/4)...)
		for p := want; len(p) > 0; {
			n := min(len(p), piece)
			f.write(c, p[:n])
			p = p[n:]
		}
		if got := f.read(c, len(want)); !bytes.Equal(got, want) {
			t.Fatalf("pieces of %d: echo differs", piece)
		}
	}
}

func testInputOverflow(t *testing.T, newEngine NewEngine) {
	h := &handler{data: func(poller.Conn, poller.Input) (int, poller.Verdict) { return 0, poller.Rearm }}
	f := start(t, newEngine, poller.Config{LeftoverBytes: 10_000}, h)
	c := f.dial()
	f.write(c, make([]byte, 10_001))
	f.readAll(c)
	f.eventually("the overflow is named", func() bool { return h.count(poller.CauseInputOverflow) == 1 })
}
