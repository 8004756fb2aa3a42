package client

import "sync"

// backlog is what is to be done for the application, in order: callbacks, and changes of the persisted queue. One
// goroutine does it, so that neither a slow disk nor a slow application holds up the protocol.
//
// It is bounded by its producers: the reader waits for room, so that what arrives stays in the network; the rest comes
// from what the application itself has queued, which is bounded too.
type backlog struct {
	max int

	// Guarded by mu.
	mu     sync.Mutex
	work   []func()
	count  int // of work, and of what run has taken and not done
	closed bool

	// more wakes run, space wakes whoever waits for room.
	more  chan struct{}
	space chan struct{}
}

func newBacklog(limit int) *backlog {
	return &backlog{max: limit, more: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// add puts work behind the rest. After close it is dropped.
func (b *backlog) add(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.work = append(b.work, f)
	b.count++
	poke(b.more)
}

// close lets run end once everything is done.
func (b *backlog) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	poke(b.more)
}

// full reports whether there is no room.
func (b *backlog) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count >= b.max
}

// room waits until there is room, or until the given channel is closed.
func (b *backlog) room(over <-chan struct{}) {
	for b.full() {
		select {
		case <-b.space:
		case <-over:
			return
		}
	}
}

// run does the work until close.
func (b *backlog) run() {
	for {
		b.mu.Lock()
		work, closed := b.work, b.closed
		b.work = nil
		b.mu.Unlock()
		for _, f := range work {
			f()
			b.mu.Lock()
			b.count--
			b.mu.Unlock()
			poke(b.space)
		}
		if len(work) > 0 {
			continue
		}
		if closed {
			return
		}
		<-b.more
	}
}

// poke wakes the one who waits on a channel of capacity 1; being poked twice is being poked once.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
