package main

import (
	"strings"
	"testing"
)

// TestBenchUsage: what a scenario cannot do is said before anything is started.
func TestBenchUsage(t *testing.T) {
	for _, args := range []string{
		"relay --transport=wss", "echo --transport=wss", "loop --transport=wss", "push --transport=wss", "connect --transport=wss",
		"relay --conns=0", "echo --conns=0", "loop --conns=0", "push --conns=0 --targets=all", "connect --conns=0", "idle --conns=0",
		"relay --inflight=0", "echo --inflight=0", "loop --inflight=0",
		"relay --rate=-1", "echo --rate=-1", "loop --rate=-1", "push --rate=0", "connect --rate=-1",
		"push --targets=0", "push --targets=2000", "push --items=513", "idle --conns=10,10", "connect --dialers=0",
		"echo --seconds=0", "echo --rounds=0", "echo --size=-1", "echo --size=32769", "echo --engine=none", "relay --mode=none",
	} {
		if code := run(append([]string{"bench"}, strings.Fields(args)...)); code != 2 {
			t.Errorf("bench %s: exit %d", args, code)
		}
	}
}
