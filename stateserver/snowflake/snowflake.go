// Package snowflake gives message ids: 41 bits of milliseconds since 2026, 10 bits of node, 12 bits of counter. The
// generator is pure: the time is passed in, and a bound up to which it may go.
package snowflake

import (
	"errors"
	"sync"
)

// Epoch is where the time of ids starts: 2026-01-01T00:00:00Z, in ms since 1970. 41 bits last until 2095.
const Epoch = 1_767_225_600_000

const (
	counterBits = 12
	nodeBits    = 10
	counterMax  = 1<<counterBits - 1
	// NodesMax is how many nodes there can be.
	NodesMax = 1 << nodeBits
	msShift  = counterBits + nodeBits
)

// ErrExhausted means that the time of the next id would be above the bound. It passes when the bound is moved on.
var ErrExhausted = errors.New("message ids are used up to the time that is reserved for them")

// Generator gives the ids of one node. They only grow, whatever the clock does: when it stands or steps back, the counter
// and then the time of the ids go on by themselves. It is safe for concurrent use.
type Generator struct {
	node int64

	mu sync.Mutex
	// Guarded by mu: the time of the last id in ms since 1970, its counter, and the last time that may be used.
	ms, counter, until int64
}

// New makes a generator whose ids all have times above after (ms since 1970) and, until Allow is called, at most until.
func New(node int, after, until int64) *Generator {
	return &Generator{node: int64(node) << counterBits, ms: max(after, Epoch), counter: counterMax, until: until}
}

// Next is the next id at the time now (ms since 1970).
func (g *Generator) Next(now int64) (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ms, counter := g.ms, g.counter+1
	if now > ms {
		ms, counter = now, 0
	} else if counter > counterMax {
		ms, counter = ms+1, 0
	}
	if ms > g.until {
		return 0, ErrExhausted
	}
	g.ms, g.counter = ms, counter
	return (ms-Epoch)<<msShift | g.node | counter, nil
}

// Allow moves the bound on; it never moves back.
func (g *Generator) Allow(until int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = max(g.until, until)
}

// Last is the time (ms since 1970) that no id so far is above.
func (g *Generator) Last() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ms
}

// Time is when an id was given, in ms since 1970.
func Time(id int64) int64 { return id>>msShift + Epoch }

// Node is whose id it is.
func Node(id int64) int { return int(id >> counterBits & (NodesMax - 1)) }
