package secure

import (
	"runtime"
	"sync"
)

// shakersMax bounds the goroutines that do TLS handshakes. One that waits for its client holds about 40 KiB; those that
// find no goroutine wait for one, and their deadline runs.
const shakersMax = 2048

// Shakers do the TLS handshakes of one engine, which block and compute, away from what runs handlers.
type Shakers struct {
	// cpu bounds those that compute at the same time, so that a storm of handshakes leaves the handlers a core.
	cpu chan struct{}
	// running are ended by their connection's end, which comes with the handshake's deadline at the latest.
	running sync.WaitGroup

	mu sync.Mutex
	// Guarded by mu. waiting is bounded by the connections that are accepted within a handshake's deadline.
	waiting []*Layer
	count   int
}

// NewShakers makes those of one engine; a goroutine starts only when there is a handshake.
func NewShakers() *Shakers {
	return &Shakers{cpu: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))}
}

// Submit does l's handshake soon; Link.Shaken ends it.
func (s *Shakers) Submit(l *Layer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == shakersMax {
		s.waiting = append(s.waiting, l)
		return
	}
	s.count++
	s.running.Add(1)
	go s.run(l) // ended by the end of its connections
}

// Wait returns when all handshakes have ended. Nothing is submitted any more, and every connection has ended and was
// signalled.
func (s *Shakers) Wait() { s.running.Wait() }

func (s *Shakers) run(l *Layer) {
	defer s.running.Done()
	for ; l != nil; l = s.next() {
		l.handshake(s.cpu)
	}
}

// next is a handshake that waits; without one the goroutine ends.
func (s *Shakers) next() *Layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.waiting = nil
		s.count--
		return nil
	}
	l := s.waiting[0]
	s.waiting[0] = nil
	s.waiting = s.waiting[1:]
	return l
}
