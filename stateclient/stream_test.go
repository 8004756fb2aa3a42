package stateclient

import (
	"testing"
)

func TestStreamEchoes(t *testing.T) {
	b := (&logicTier{relay: echo(nil)}).start(t, "")
	w := newWatcher(t)
	w.onAnswer = func(d Downlink) {
		if d.Outcome != Answered {
			t.Errorf("outcome %d: %s", d.Outcome, d.Detail)
		}
	}
	r := open(t, quick(b.addr), w)
	eventually(t, "ready", r.Ready)
	var peers []*Peer
	for i := range 50 {
		peers = append(peers, peer(i+1))
	}
	n := 0
	for seq := uint64(1); seq <= 100; seq++ {
		var pass []Uplink
		for _, p := range peers {
			pass = append(pass, frame(p, seq))
		}
		for _, ok := range w.submit(r, pass) {
			if !ok {
				t.Fatal("refused")
			}
			n++
		}
	}
	eventually(t, "all answered", func() bool { return w.answered() == n })
}
