package poller

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

// TestConnSize keeps the struct that every idle connection pays for within its budget: 160 bytes of the gateway's 600.
func TestConnSize(t *testing.T) {
	if n := unsafe.Sizeof(conn{}); n > 120 {
		t.Errorf("a connection takes %d bytes", n)
	}
}

func TestBuffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p buffers
		b := p.take(rapid.IntRange(1, 2000).Draw(t, "first"))
		var want []byte
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			if n := rapid.IntRange(0, b.len()).Draw(t, "taken"); rapid.Bool().Draw(t, "take") {
				b.off += n
				want = want[n:]
			}
			add := rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "add")
			b = p.grown(b, len(add))
			b.add(add)
			if want = append(want, add...); !bytes.Equal(b.bytes(), want) {
				t.Fatal("buffer and copy differ")
			}
		}
	})
}

// TestBufferClasses shows that a buffer has room and is less than twice what was asked for.
func TestBufferClasses(t *testing.T) {
	var p buffers
	for _, n := range []int{1, 256, 257, 16 << 10, 100_000, 512 << 10, 512<<10 + 1, 3 << 20} {
		b := p.take(n)
		if b.room() < n || b.room() >= 2*n && b.room() > 256 {
			t.Errorf("asked for %d, got %d", n, b.room())
		}
		p.give(b)
	}
}

func TestSlab(t *testing.T) {
	s := newSlab(chunkSlots + 1)
	var all []*conn
	for {
		c := s.take()
		if c == nil {
			break
		}
		if c.id() == 0 || s.at(c.slot) != c {
			t.Fatalf("slot %d: id %x", c.slot, c.id())
		}
		all = append(all, c)
	}
	if len(all) != chunkSlots+1 {
		t.Fatalf("%d slots", len(all))
	}
	s.put(all[7])
	if c := s.take(); c != all[7] || s.take() != nil {
		t.Error("a freed slot is not the next one")
	}
	if s.at(2*chunkSlots) != nil || s.at(^uint32(0)) != nil {
		t.Error("a slot beyond the limit")
	}
}

func TestConfig(t *testing.T) {
	for field, cfg := range map[string]Config{"Loops": {Loops: -1}, "OutboxBytes": {OutboxBytes: -5}, "Linger": {Linger: -1}, "Reserve": {Reserve: -1}} {
		if err := cfg.check(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := (Config{Reserve: 1 << 40}).clamp(); err == nil {
		t.Error("a reserve above the descriptor limit")
	}
}

func TestLimits(t *testing.T) {
	now := time.Unix(1000, 0)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("::ffff:192.0.2.1")
	l := newLimits(Accept{PerAddrConnections: 1})
	q, ok := l.address(a, now)
	if !ok {
		t.Fatal("the first was refused")
	}
	if _, ok := l.address(b, now); ok {
		t.Error("the same address in another form was let in")
	}
	l.closed(q)
	if len(l.addrs) != 0 {
		t.Error("a gone address is remembered")
	}
	if _, ok := l.address(b, now); !ok {
		t.Error("refused after the first has gone")
	}
	six := newLimits(Accept{PerAddrConnections: 1})
	if _, ok := six.address(netip.MustParseAddr("2001:db8::1"), now); !ok {
		t.Fatal("the first was refused")
	}
	if _, ok := six.address(netip.MustParseAddr("2001:db8::ffff"), now); ok {
		t.Error("one /64 is one address")
	}
	if _, ok := six.address(netip.MustParseAddr("2001:db8:0:1::1"), now); !ok {
		t.Error("another /64 is another address")
	}
}

// TestLimitsBounded shows that addresses that come once do not fill the memory for good.
func TestLimitsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLimits(Accept{PerAddrPerSecond: 1})
	addr := netip.MustParseAddr("10.0.0.0")
	come := func() bool {
		addr = addr.Next()
		q, ok := l.address(addr, now)
		if ok {
			l.closed(q)
		}
		return ok
	}
	for range addrsMax {
		if !come() {
			t.Fatal("refused")
		}
	}
	if come() {
		t.Error("let in beyond the bound")
	}
	now = now.Add(2 * time.Second)
	if !come() || len(l.addrs) > 1 {
		t.Errorf("%d addresses after the sweep", len(l.addrs))
	}
}
