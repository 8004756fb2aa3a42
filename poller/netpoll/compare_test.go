package netpoll_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/netpoll"
)

// What this engine costs beside the oneshot engine, both measured in one run.

// serverEnv makes the test binary a server: the value is engine/kind.
const serverEnv = "SLUICE_COMPARE_SERVER"

var engines = []string{"oneshot", "netpoll"}

func engineNamed(name string, cfg poller.Config, h poller.Handler) (poller.Engine, error) {
	if name == "netpoll" {
		return netpoll.New(cfg, h, slog.New(slog.DiscardHandler))
	}
	return poller.New(cfg, h, slog.New(slog.DiscardHandler))
}

// waiter sets a timer for each connection, as a gateway does, and echoes or parks.
type waiter struct{ verdict poller.Verdict }

func (w waiter) Open(c poller.Conn, _ poller.Info, now time.Duration) poller.Verdict {
	c.SetTimer(now + time.Hour)
	return poller.Rearm
}

func (w waiter) Data(c poller.Conn, in poller.Input) (int, poller.Verdict) {
	if w.verdict == poller.Park {
		return 0, poller.Park
	}
	c.Queue(in.Bytes)
	return len(in.Bytes), poller.Rearm
}

func (w waiter) Timeout(poller.Conn, time.Duration) poller.Verdict { return poller.Rearm }
func (w waiter) Closed(poller.ID, poller.Cause)                    {}
func (w waiter) PassEnd(int)                                       {}

// serve is the process of a server: it prints its address, and collects garbage whenever a line comes in.
func serve(spec string) error {
	name, kind, _ := strings.Cut(spec, "/")
	h := waiter{}
	if kind == "parked" {
		h.verdict = poller.Park
	}
	e, err := engineNamed(name, poller.Config{}, h)
	if err != nil {
		return err
	}
	addr, err := e.Listen(poller.Listener{Addr: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	fmt.Println(addr)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		runtime.GC()
		runtime.GC() // the first only ends the use of pooled buffers
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s := e.Stats()
		fmt.Println(m.HeapAlloc, s.Open[0], s.Parked)
	}
	return nil
}

// process is a running server.
type process struct {
	cmd  *exec.Cmd
	in   io.Writer
	out  *bufio.Scanner
	addr string
}

func startServer(b *testing.B, spec string) *process {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"="+spec)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p := &process{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	if !p.out.Scan() {
		b.Fatalf("server %s did not start", spec)
	}
	p.addr = p.out.Text()
	return p
}

// memory is the process's proportional set size and live heap, with its connections and those that are parked.
func (p *process) memory(b *testing.B) (pss, heap, open, parked int64) {
	b.Helper()
	if _, err := fmt.Fprintln(p.in); err != nil {
		b.Fatal(err)
	}
	if !p.out.Scan() {
		b.Fatal("server has ended")
	}
	if _, err := fmt.Sscan(p.out.Text(), &heap, &open, &parked); err != nil {
		b.Fatal(err)
	}
	smaps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(smaps)) {
		if v, ok := strings.CutPrefix(line, "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			pss = kb << 10
		}
	}
	return pss, heap, open, parked
}

// BenchmarkMemory measures what a connection costs in user space, as the slope between two numbers of connections: idle
// ones that have echoed one message, and parked ones whose clients have sent 64 KiB each. Run it with -benchtime 1x.
func BenchmarkMemory(b *testing.B) {
	for _, c := range []struct {
		kind      string
		few, many int
		send      int
	}{{kind: "idle", few: 5000, many: 15_000, send: 64}, {kind: "parked", few: 500, many: 2500, send: 64 << 10}} {
		for _, name := range engines {
			b.Run(c.kind+"/"+name, func(b *testing.B) {
				for range b.N {
					p := startServer(b, name+"/"+c.kind)
					clients := make([]net.Conn, 0, c.many)
					defer func() {
						for _, c := range clients {
							_ = c.Close()
						}
					}()
					grow := func(n int) (int64, int64) {
						for len(clients) < n {
							conn, err := net.Dial("tcp", p.addr)
							if err != nil {
								b.Fatal(err)
							}
							clients = append(clients, conn)
							if _, err := conn.Write(make([]byte, c.send)); err != nil {
								b.Fatal(err)
							}
							if c.kind == "idle" {
								if _, err := io.ReadFull(conn, make([]byte, c.send)); err != nil {
									b.Fatal(err)
								}
							}
						}
						return p.settled(b, int64(n), c.kind == "parked")
					}
					pss1, heap1 := grow(c.few)
					pss2, heap2 := grow(c.many)
					b.ReportMetric(float64(pss2-pss1)/float64(c.many-c.few), "PSS-B/conn")
					b.ReportMetric(float64(heap2-heap1)/float64(c.many-c.few), "heap-B/conn")
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
}

// settled waits until n connections are open, or parked, and the set size stands still.
func (p *process) settled(b *testing.B, n int64, park bool) (pss, heap int64) {
	b.Helper()
	for deadline, last := time.Now().Add(time.Minute), int64(0); ; {
		now, heap, open, parked := p.memory(b)
		if open == n && (!park || parked == n) && now-last < 64<<10 && last-now < 64<<10 {
			return now, heap
		}
		last = now
		if time.Now().After(deadline) {
			b.Fatalf("%d open and %d parked of %d after a minute", open, parked, n)
		}
		<-time.After(200 * time.Millisecond)
	}
}

// BenchmarkWake measures a round trip of a parked connection: wake, handler call, park.
func BenchmarkWake(b *testing.B) {
	for _, name := range engines {
		b.Run(name, func(b *testing.B) {
			var id atomic.Uint64
			runs := make(chan struct{}, 1)
			h := &scripted{data: func(c poller.Conn, _ poller.Input) (int, poller.Verdict) {
				id.Store(uint64(c.ID()))
				runs <- struct{}{}
				return 0, poller.Park
			}}
			e, err := engineNamed(name, poller.Config{Loops: 1}, h)
			if err != nil {
				b.Fatal(err)
			}
			defer e.Shutdown()
			addr, err := e.Listen(poller.Listener{Addr: "127.0.0.1:0"})
			if err != nil {
				b.Fatal(err)
			}
			c, err := net.Dial("tcp", addr.String())
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			if _, err := c.Write([]byte("left over")); err != nil {
				b.Fatal(err)
			}
			<-runs
			b.ReportAllocs()
			for b.Loop() {
				e.Conns().Wake(poller.ID(id.Load()))
				<-runs
			}
		})
	}
}
