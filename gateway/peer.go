package gateway

import (
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
)

// peer is what the gateway knows of one connection. It lives in a slab beside the engine's own and holds nothing that an
// idle connection does not need: a million of them are kept at once.
type peer struct {
	mu sync.Mutex
	// Guarded by mu.
	tenant
}

// tenant is the connection in a slot.
type tenant struct {
	// id is 0 while the slot is free.
	id      poller.ID
	session session
	stream  codec.Stream
	// who is nil before login. It is never changed, only replaced: uplinks on their way share it.
	who *stateclient.Peer
	// first and last are the uplinks in flight, in order; refused is the first of those that the queue did not take.
	first, last, refused *uplink
	// armed is when the engine's timer goes off, in its own time; 0 = it is not set.
	armed time.Duration
	// since is the wall clock at which the connection opened, ms since 1970.
	since int64
	// rare is nil for most connections most of the time.
	rare *rare

	listener uint8
	loop     uint8
	// framed: commands are on the wire, no HTTP any more.
	framed bool
	// parked: the last verdict was Park.
	parked bool
	// counted is the hold under which the parked gauge counts this connection, plus one; 0 = it is not counted.
	counted uint8
}

// rare is what a connection needs only now and then.
type rare struct {
	remote string // before login, when who has it
	login  *login
	// admitted is the address of X-Forwarded-For that the connection counts for, where there are limits per address.
	admitted netip.Addr
	// later are the uplinks whose RETRY waits for its time.
	later *uplink
	// rules are the connection's own limits (auth mode backend); nil = as configured.
	rules *rules
	// trace is the traceparent that came with the upgrade.
	trace string
	// byDevice is told to the client with a KICK.
	byDevice string
	// epoch is that of a route which was written after the login: who cannot be changed any more.
	epoch int64
	// parkedAt is when the queue refused first, on the gateway's own clock.
	parkedAt time.Duration
	// leaveAt is when a leaving connection is closed with or without its answers, on the gateway's own clock.
	leaveAt time.Duration
}

func (p *peer) rarely() *rare {
	if p.rare == nil {
		p.rare = &rare{}
	}
	return p.rare
}

// tidy drops rare once nothing in it is needed any more.
func (p *peer) tidy() {
	if p.rare != nil && *p.rare == (rare{}) {
		p.rare = nil
	}
}

// trace is the traceparent that came with the upgrade; empty = none did.
func (p *tenant) trace() string {
	if p.rare == nil {
		return ""
	}
	return p.rare.trace
}

// epoch is the fence of the connection's route; 0 = it has none yet.
func (p *tenant) epoch() int64 {
	if p.rare != nil && p.rare.epoch != 0 {
		return p.rare.epoch
	}
	return p.who.Epoch
}

// remote is the address of the other side.
func (p *peer) remote() string {
	if p.who != nil {
		return p.who.RemoteAddr
	}
	if p.rare != nil {
		return p.rare.remote
	}
	return ""
}

// chunkPeers is how many peers one piece of the slab holds: about 200 KiB, so that a small gateway stays small.
const chunkPeers = 1024

// peers is a slab of peers, indexed by slot. It grows by chunks that never move, so that finding one takes no lock.
type peers struct {
	chunks []atomic.Pointer[[chunkPeers]peer]
	// Guarded by mu: growing.
	mu sync.Mutex
}

func newPeers(connections int) *peers {
	return &peers{chunks: make([]atomic.Pointer[[chunkPeers]peer], (connections+chunkPeers-1)/chunkPeers)}
}

// at is the peer in the slot of id, whoever is in it now; nil when nobody ever was.
func (s *peers) at(id poller.ID) *peer {
	i := int(id.Slot() / chunkPeers)
	if i >= len(s.chunks) {
		return nil
	}
	c := s.chunks[i].Load()
	if c == nil {
		return nil
	}
	return &c[id.Slot()%chunkPeers]
}

// grow is at, but makes the slot when nobody was in it before.
func (s *peers) grow(id poller.ID) *peer {
	if p := s.at(id); p != nil {
		return p
	}
	i := id.Slot() / chunkPeers
	s.mu.Lock()
	if s.chunks[i].Load() == nil {
		s.chunks[i].Store(new([chunkPeers]peer))
	}
	s.mu.Unlock()
	return s.at(id)
}

// locked is the peer that id names, locked; nil when that connection is gone.
func (s *peers) locked(id poller.ID) *peer {
	p := s.at(id)
	if p == nil {
		return nil
	}
	p.mu.Lock()
	if p.id != id || id == 0 {
		p.mu.Unlock()
		return nil
	}
	return p
}

// each calls f for every slot that was ever in use, until f returns false. f locks for itself.
func (s *peers) each(f func(slot uint32, p *peer) bool) {
	for i := range s.chunks {
		c := s.chunks[i].Load()
		if c == nil {
			continue
		}
		for j := range c {
			if !f(uint32(i*chunkPeers+j), &c[j]) {
				return
			}
		}
	}
}

// platforms are interned: nearly every connection has one of these.
var platforms = [...]string{"", "web", "ios", "android", "windows", "macos", "linux", "desktop", "mobile", "bot"}

// pack makes the strings of a peer share one piece of memory, and copies them away from the frame they came in.
func pack(w *stateclient.Peer) {
	platform := ""
	for _, known := range platforms {
		if known == w.Platform {
			platform = known
		}
	}
	other := w.Platform
	if platform == other {
		other = ""
	}
	all := strings.Join([]string{w.UID, w.DeviceID, w.SessionID, w.RemoteAddr, other}, "")
	cut := func(n int) string {
		s := all[:n]
		all = all[n:]
		return s
	}
	w.UID, w.DeviceID = cut(len(w.UID)), cut(len(w.DeviceID))
	w.SessionID, w.RemoteAddr = cut(len(w.SessionID)), cut(len(w.RemoteAddr))
	w.Platform = platform
	if other != "" {
		w.Platform = cut(len(other))
	}
}
