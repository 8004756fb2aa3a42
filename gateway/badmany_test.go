package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
)

// heap is what the process holds once everything that nobody holds is gone; the pools are emptied in two collections.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestLongHeaders: a request that does not end holds no more than 8 KiB, and whoever sends more is told 431, in no more
// memory, while a neighbour goes on.
func TestLongHeaders(t *testing.T) {
	for _, w := range badWays {
		t.Run(w.name, func(t *testing.T) { testLongHeaders(t, w) })
	}
}

func testLongHeaders(t *testing.T, w way) {
	const (
		clients = 200
		limit   = 8 << 10
		// More than the request for each client: its buffer is of a size class, netpoll holds a buffer of 4 KiB for every
		// connection that has sent something, and TLS a piece of a record.
		slack = 2 << 10
		layer = 6 << 10
	)
	r := w.run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		patient(c, d)
		c.Limits.Handshake.Timeout = 10 * deadline
	})
	near := &canary{w: r.dial(t, protocolTCP, "near", "phone")}
	wires := make([]*wire, clients)
	for i := range wires {
		wires[i] = r.connect(t, protocolWS)
	}
	eventually(t, "all are open", func() bool { return r.g.gauges.open() == clients+1 })
	near.works()
	line := []byte("GET /ws HTTP/1.1\r\nHost: gw\r\nX-A: " + strings.Repeat("a", 1<<20))
	base := heap()
	for _, w := range wires {
		w.send(line[:limit-1])
	}
	held := 0
	eventually(t, "what they have sent is held", func() bool {
		held = heap() - base
		return held > clients*(limit-slack)
	})
	near.works()
	held = heap() - base
	t.Logf("%d bytes a client are held", held/clients)
	allowed := limit + slack
	if w.name != "oneshot" {
		allowed += layer
	}
	if held > clients*allowed {
		t.Errorf("%d bytes a client are held, more than %d", held/clients, allowed)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var told sync.WaitGroup
	for _, w := range wires {
		told.Go(func() {
			_ = w.conn.SetDeadline(time.Now().Add(deadline))
			go func() { _, _ = w.conn.Write(line[limit-1:]) }() // it is closed before it has sent all
			answer, _ := io.ReadAll(w.conn)
			if !strings.HasPrefix(string(answer), "HTTP/1.1 431 ") {
				t.Errorf("answered %.100q", answer)
			}
			_ = w.conn.Close()
		})
	}
	told.Wait()
	near.works()
	runtime.ReadMemStats(&after)
	allocated := uint64(64 * limit) // the clients' own included, and half of what they send
	if r.g.cfg.Engine.Name == engineNetpoll {
		allocated = badAllocMax[engineNetpoll]
	}
	if n := (after.TotalAlloc - before.TotalAlloc) / clients; n > allocated {
		t.Errorf("%d bytes a client were allocated to refuse 1 MiB", n)
	}
	eventually(t, "they are counted", func() bool { return r.ends(t, reason.HeaderTooLarge) == clients })
	eventually(t, "nothing is held any more", func() bool { return heap()-base < clients*slack/2 })
}

// TestBadInputLeavesNothing: many times everything that must be refused, from many at once, and then memory, goroutines
// and descriptors are what they were. The neighbour is answered all the while.
func TestBadInputLeavesNothing(t *testing.T) {
	for _, w := range badWays {
		t.Run(w.name, func(t *testing.T) { testBadInputLeavesNothing(t, w) })
	}
}

func testBadInputLeavesNothing(t *testing.T, w way) {
	const rounds, together = 2, 4
	r := w.run(t, startLogic(t, &logic{}), patient)
	near := &canary{w: r.dial(t, protocolTCP, "near", "phone")}
	inputs := everyBad(t)
	r.provokes(t, inputs, together, near)
	settled := func() { eventually(t, "only the neighbour is left", func() bool { return r.g.gauges.open() == 1 }) }
	settled()
	goroutines, fds, base := runtime.NumGoroutine(), descriptors(t), heap()
	for range rounds {
		r.provokes(t, inputs, together, near)
	}
	settled()
	eventually(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	eventually(t, "the descriptors are given back", func() bool { return descriptors(t) <= fds })
	grown := 0
	eventually(t, "the memory is given back", func() bool {
		grown = heap() - base
		return grown < 512<<10 // the test's own books grow too
	})
	t.Logf("%d bad inputs more, and %d bytes more are held", rounds*together*len(inputs), grown)
	runtime.KeepAlive(inputs) // they are in base
}

// provocation is a bad input and what comes before it.
type provocation struct {
	protocol string
	first    []byte
	bytes    []byte
}

// everyBad is all of this package's bad input; who has to log in says so in the same breath.
func everyBad(t *testing.T) (all []provocation) {
	upgrade := func(i int, proto codec.Protocol) []byte {
		return upgradeRequest(proto, []string{fmt.Sprint("bearer=bad", i), "device_id=phone", "deflate=15"})
	}
	for i, b := range badFrames(t) {
		all = append(all, provocation{protocolWS, upgrade(i, codec.WebSocket), b.bytes})
	}
	for i, b := range badTexts(t) {
		all = append(all, provocation{protocolWS, upgrade(100+i, codec.WebSocketJSON), b.bytes})
	}
	for _, b := range badRequests() {
		all = append(all, provocation{protocolWS, nil, b.bytes})
	}
	for _, b := range badStreams() {
		all = append(all, provocation{protocolTCP, nil, b.bytes})
	}
	return all
}

// provokes sends every input from several clients at once, and lets the neighbour work until all have been refused.
func (r *running) provokes(t *testing.T, inputs []provocation, together int, near *canary) {
	t.Helper()
	var all sync.WaitGroup
	done := make(chan struct{})
	for range together {
		all.Go(func() {
			for _, b := range inputs {
				if err := r.provoke(b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() {
		all.Wait()
		close(done)
	}()
	for {
		near.works()
		select {
		case <-done:
			return
		default:
		}
	}
}

// provoke sends one bad input, and reads until the end.
func (r *running) provoke(b provocation) error {
	raw, err := net.Dial("tcp", r.g.Addr(b.protocol))
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer func() { _ = raw.Close() }()
	conn := raw
	if r.way.open != nil {
		if conn, err = r.way.open(raw); err != nil {
			return fmt.Errorf("open: %w", err)
		}
	}
	_ = conn.SetDeadline(time.Now().Add(deadline))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = conn.Write(b.first)
		_, _ = conn.Write(b.bytes) // it may be closed before all is sent
	}()
	n, err := io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%.20q: not closed after %d bytes", b.bytes, n)
	}
	_ = raw.Close()
	<-sent
	return nil
}
