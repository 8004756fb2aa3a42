// Package devredis is a Redis-compatible server inside this process, for `sluice dev` and for tests that need no real one.
// It is alicebob/miniredis with two things that a test server leaves out: a clock that runs, so that leases, routes and
// dedup keys expire, and a run_id. It keeps nothing on disk.
package devredis

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

const (
	// A key may expire one pause between ticks too early or too late. The shortest lives here are those of dedup marks,
	// 2 s, so a quarter of that is the most.
	tickMin = 20 * time.Millisecond
	tickMax = 500 * time.Millisecond
	// restPerTick keeps the clock cheap: a tick looks at every key, so the pause after it is 20 times as long where tickMax
	// allows; that is 5 % of one core up to about 100,000 keys.
	restPerTick = 20
)

// Server is a running server. Close ends it.
type Server struct {
	mini  *miniredis.Miniredis
	runID string
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
}

// Start listens on addr (host:port, port 0 for a free one) and serves until Close.
func Start(addr string) (*Server, error) {
	mini := miniredis.NewMiniRedis()
	if err := mini.StartAddr(addr); err != nil {
		return nil, fmt.Errorf("devredis: listen on %s: %w", addr, err)
	}
	id := make([]byte, 20)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	s := &Server{mini: mini, runID: hex.EncodeToString(id), stop: make(chan struct{}), done: make(chan struct{})}
	mini.Server().SetPreHook(s.info)
	go s.tick() // until Close
	return s, nil
}

// Addr is the address it listens on.
func (s *Server) Addr() string { return s.mini.Addr() }

// Close ends the server and all its connections, and waits for its goroutines. Calling it twice is harmless.
func (s *Server) Close() {
	s.once.Do(func() {
		close(s.stop)
		<-s.done
		s.mini.Close()
	})
}

// tick lets the time to live of all keys run. The clock of TIME is the system's and needs no help.
func (s *Server) tick() {
	defer close(s.done)
	last, pause := time.Now(), tickMin
	for {
		timer := time.NewTimer(pause)
		select {
		case <-s.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		now := time.Now()
		s.mini.FastForward(now.Sub(last))
		last, pause = now, min(max(tickMin, restPerTick*time.Since(now)), tickMax)
	}
}

// info answers INFO server, which the embedded server does not know; every other command goes on to it.
func (s *Server) info(c *server.Peer, command string, args ...string) bool {
	if !strings.EqualFold(command, "INFO") || len(args) != 1 || !strings.EqualFold(args[0], "server") {
		return false
	}
	c.WriteBulk("# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nrun_id:" + s.runID + "\r\n")
	return true
}
