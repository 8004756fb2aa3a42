package gate

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
)

// IndexMax bounds the index of a listener: a connection keeps it in one byte, and nobody listens on more addresses.
const IndexMax = 63

// ErrClosed is returned by Gates.Open after Close.
var ErrClosed = errors.New("poller: engine does not accept any more")

// Gates are all gates of one engine, and count who is inside by the index of the listener. The zero value is ready. Any
// goroutine may call the methods.
type Gates struct {
	inside [IndexMax + 1]struct {
		open   atomic.Int64
		opened atomic.Uint64
	}

	mu sync.Mutex
	// Guarded by mu.
	gates   []*Gate
	indices int // one more than the highest index
	closed  bool
}

// Open opens one more gate, as the function Open does; several may have the same index, which is at most IndexMax.
func (g *Gates) Open(index int, addr string, sendBuffer int, host Host, log *slog.Logger) (net.Addr, error) {
	if index < 0 || index > IndexMax {
		return nil, fmt.Errorf("poller: Listener.Index is %d, must be 0 to %d", index, IndexMax)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, ErrClosed
	}
	gate, err := Open(addr, sendBuffer, host, log)
	if err != nil {
		return nil, fmt.Errorf("poller: listen on %s: %w", addr, err)
	}
	g.gates = append(g.gates, gate)
	g.indices = max(g.indices, index+1)
	return gate.Addr(), nil
}

// Close closes all gates; their goroutines have ended when it returns.
func (g *Gates) Close() {
	g.mu.Lock()
	g.closed = true
	gates := g.gates
	g.gates = nil
	g.mu.Unlock()
	for _, gate := range gates {
		gate.Close()
	}
}

// Entered counts a connection that is open from now on.
func (g *Gates) Entered(index uint8) {
	g.inside[index].open.Add(1)
	g.inside[index].opened.Add(1)
}

// Left counts the end of one that Entered has counted.
func (g *Gates) Left(index uint8) { g.inside[index].open.Add(-1) }

// Counts are, by index, the connections that are open and those that ever were.
func (g *Gates) Counts() (open []int64, opened []uint64) {
	g.mu.Lock()
	n := g.indices
	g.mu.Unlock()
	open, opened = make([]int64, n), make([]uint64, n)
	for i := range n {
		open[i], opened[i] = g.inside[i].open.Load(), g.inside[i].opened.Load()
	}
	return open, opened
}
