package poller

import (
	"runtime"
	"sync"
)

// shakersMax bounds the goroutines that do TLS handshakes. One that waits for its client holds about 40 KiB; those that
// find no goroutine wait for one, and their deadline runs.
const shakersMax = 2048

// shakers do TLS handshakes, which block and compute, away from the loops.
type shakers struct {
	// cpu bounds those that compute at the same time, so that a storm of handshakes leaves the loops a core.
	cpu chan struct{}
	// running are ended by their connection's end, which comes with HandshakeTimeout at the latest.
	running sync.WaitGroup

	mu sync.Mutex
	// Guarded by mu. waiting is bounded by the connections.
	waiting []*tlsConn
	count   int
}

func newShakers() *shakers {
	return &shakers{cpu: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))}
}

// submit does t's handshake soon.
func (s *shakers) submit(t *tlsConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == shakersMax {
		s.waiting = append(s.waiting, t)
		return
	}
	s.count++
	s.running.Add(1)
	go s.run(t) // ended by the end of its connections
}

func (s *shakers) run(t *tlsConn) {
	defer s.running.Done()
	for ; t != nil; t = s.next() {
		t.handshake()
	}
}

// next is a handshake that waits; without one the goroutine ends.
func (s *shakers) next() *tlsConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.waiting = nil
		s.count--
		return nil
	}
	t := s.waiting[0]
	s.waiting[0] = nil
	s.waiting = s.waiting[1:]
	return t
}
