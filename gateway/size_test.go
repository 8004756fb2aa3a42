package gateway

import (
	"testing"
	"unsafe"

	"github.com/sluice-im/sluice/stateclient"
)

// TestPeerIsSmall keeps the memory of an idle connection in check: a million of these structs are kept at once.
func TestPeerIsSmall(t *testing.T) {
	const peerMax, whoMax = 256, 144
	if n := unsafe.Sizeof(peer{}); n > peerMax {
		t.Errorf("a peer has %d bytes, at most %d are allowed", n, peerMax)
	} else {
		t.Logf("peer %d bytes", n)
	}
	if n := unsafe.Sizeof(stateclient.Peer{}); n > whoMax {
		t.Errorf("a stateclient.Peer has %d bytes, at most %d are allowed", n, whoMax)
	}
	t.Logf("session %d, who %d", unsafe.Sizeof(session{}), unsafe.Sizeof(stateclient.Peer{}))
}
