package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-im/sluice/bench"
	"github.com/sluice-im/sluice/bench/load"
	"github.com/sluice-im/sluice/gateway"
	"github.com/sluice-im/sluice/internal/testenv/certs"
)

// TestMain is this program itself when a test has started it as a process of a benchmark.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "bench-child" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

const (
	// heapFirst clients come before the first look, so that everything that is there once is there already; heapMore come
	// between the first look and the second. Both are whole chunks of the slabs.
	heapFirst = 1024
	heapMore  = 2048
	// heapLooks bounds how often one transport is measured: what the rest of the gateway happens to hold on to meanwhile only
	// adds.
	heapLooks = 3
	// heapSlack is by how much the heap of a connection may exceed the stored one.
	heapSlack = 1.05
)

// TestIdleConnectionKeepsItsHeap fails when an idle, logged-in connection takes more heap than testdata/idle_heap.json
// says for its transport, through the real gateway and the real engine, with limits, timers and routes on. It is the heap in use after a
// collection, so that it depends on neither load nor time. A lower figure is to be stored there.
func TestIdleConnectionKeepsItsHeap(t *testing.T) {
	var budget map[string]float64
	b, err := os.ReadFile("testdata/idle_heap.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &budget); err != nil {
		t.Fatal(err)
	}
	for name, want := range budget {
		t.Run(name, func(t *testing.T) {
			got := idleHeap(t, name)
			for look := 1; look < heapLooks && got > want*heapSlack; look++ {
				t.Logf("%.0f bytes, once more", got)
				got = min(got, idleHeap(t, name))
			}
			t.Logf("%.0f bytes of heap an idle connection, %.0f are stored", got, want)
			if got > want*heapSlack {
				t.Errorf("%.0f bytes of heap an idle connection, more than 5 %% above the %.0f in testdata/idle_heap.json", got, want)
			}
		})
	}
}

// idleHeap is the heap of one connection over a transport. Everything but the gateway runs in processes of its own.
func idleHeap(t *testing.T, transport string) float64 {
	// Not the test's context: that one ends before the cleanups, and the processes would with it.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	start := func(name string, args ...string) *bench.Process {
		p, err := bench.StartProcess(ctx, name, nil, append([]string{"bench-child"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Stop)
		return p
	}
	logic, redis := start("logic", "logic"), start("redis", "redis")
	cmd := benchGatewayCmd{Logic: logic.Addr, Redis: redis.Addr, Engine: "oneshot", Mode: "stream"}
	if transport == string(load.WSS) {
		pair := certs.New(t).Issue(t, "gateway")
		cmd.Cert, cmd.Key = pair.Cert, pair.Key
	}
	cfg, err := cmd.config()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Heartbeat.IdleTimeout, cfg.Limits.Handshake.Timeout = time.Hour, time.Minute
	g, err := gateway.New(cfg, gateway.Deps{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { ended <- g.Run(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-g.Started()
	clients := func(first, n int) {
		start("load", "load", "--addr", g.Addr(transport), "--transport", transport, "--conns", strconv.Itoa(n),
			"--first", strconv.Itoa(first), "--dialers", "8")
	}
	clients(0, heapFirst)
	before := heap()
	clients(heapFirst, heapMore)
	after := heap()
	return (after - before) / heapMore
}

// heap is what is in use once collections find nothing more: pools give up what they hold in the second.
func heap() float64 {
	var m runtime.MemStats
	least := uint64(1 << 62)
	for same := 0; same < 3; {
		runtime.GC()
		runtime.ReadMemStats(&m)
		if m.HeapAlloc < least-min(least, 1<<10) {
			same = 0
		} else {
			same++
		}
		least = min(least, m.HeapAlloc)
	}
	return float64(least)
}
