package delivery

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// BenchmarkWholeWay is a message from Enqueue over lookup, enrolment, push and the client's ack, with a real Redis and a
// gRPC gateway on the same machine, in batches as a committer hands them over.
func BenchmarkWholeWay(b *testing.B) {
	w := newWorld(b)
	g := newGateway(b)
	c := slowConfig()
	n := w.node(c)
	// As many messages are on their way at once as 20,000 a second with 50 ms to the ack make.
	const users, batch, onTheirWay = 1000, 64, 1024
	for i, uid := range uids(users) {
		w.connect(g.route(uid, "d", uint64(i+1)))
	}
	var acked atomic.Int64
	acks := make(chan arrival, 1<<16)
	var clients sync.WaitGroup
	for range 64 {
		clients.Go(func() {
			for a := range acks {
				if _, err := n.Acked(context.Background(), a.target.GetUid(), "d", a.down.GetConvId(), a.down.GetSeq()); err != nil {
					b.Error(err)
				}
				acked.Add(1)
			}
		})
	}
	g.mu.Lock()
	g.arrived = func(a arrival) { acks <- a }
	g.mu.Unlock()
	all := uids(users)
	b.ReportAllocs()
	redisBefore, ownBefore := redisCPU(b, w), ownCPU(b)
	b.ResetTimer()
	tasks := make([]Task, 0, batch)
	for i := range b.N {
		tasks = append(tasks, to(int64(i+1), all[i%users], int64(i/users+1)))
		if len(tasks) == batch || i == b.N-1 {
			eventually(b, "acks keep up", func() bool { return int64(i)-acked.Load() < onTheirWay })
			if err := n.Enqueue(context.Background(), tasks); err != nil {
				b.Fatal(err)
			}
			tasks = tasks[:0]
		}
	}
	eventually(b, "all acked", func() bool { return acked.Load() == int64(b.N) })
	b.StopTimer()
	b.ReportMetric((redisCPU(b, w)-redisBefore)*1e6/float64(b.N), "redis-cpu-µs/message")
	b.ReportMetric((ownCPU(b)-ownBefore)*1e6/float64(b.N), "own-cpu-µs/message") // the fake gateway's and clients' included
	close(acks)
	clients.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	g.mu.Lock()
	b.ReportMetric(float64(b.N)/float64(max(g.calls, 1)), "messages/push")
	g.mu.Unlock()
}

// BenchmarkAcked is the client's ack alone, from many connections at once.
func BenchmarkAcked(b *testing.B) {
	w := newWorld(b)
	n := w.node(slowConfig())
	b.SetParallelism(64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := n.Acked(context.Background(), "bob", "phone", "u:alice:bob", 1); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkLatency is one message at a time, from Enqueue to its arrival at the gateway.
func BenchmarkLatency(b *testing.B) {
	w := newWorld(b)
	g := newGateway(b)
	n := w.node(slowConfig())
	w.connect(g.route("bob", "phone", 1))
	arrived := make(chan struct{}, 1)
	g.mu.Lock()
	g.arrived = func(arrival) { arrived <- struct{}{} }
	g.mu.Unlock()
	for i := range b.N {
		if err := n.Enqueue(context.Background(), []Task{to(int64(i+1), "bob", int64(i+1))}); err != nil {
			b.Fatal(err)
		}
		<-arrived
		if _, err := n.Acked(context.Background(), "bob", "phone", "u:alice:bob", int64(i+1)); err != nil {
			b.Fatal(err)
		}
	}
}

// redisCPU is the CPU time of the server in seconds; it survives a noisy machine better than wall time.
func redisCPU(b *testing.B, w *world) (seconds float64) {
	for line := range strings.Lines(w.rdb.Info(context.Background(), "cpu").Val()) {
		for _, name := range []string{"used_cpu_user:", "used_cpu_sys:"} {
			if v, ok := strings.CutPrefix(line, name); ok {
				f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
				if err != nil {
					b.Fatal(err)
				}
				seconds += f
			}
		}
	}
	return seconds
}

func ownCPU(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
