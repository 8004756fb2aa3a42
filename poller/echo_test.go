package poller_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller"
)

// echoEnv names the kind of echo server that a process started by BenchmarkEcho is.
const echoEnv = "SLUICE_ECHO_SERVER"

// echoKinds are measured against each other in one run; the first is the floor.
var echoKinds = []string{"bare", "bare-oneshot", "engine"}

// echoHandler sends back what comes.
type echoHandler struct{}

func (echoHandler) Open(poller.Conn, poller.Info, time.Duration) poller.Verdict { return poller.Rearm }
func (echoHandler) Data(c poller.Conn, in poller.Input) (int, poller.Verdict) {
	c.Queue(in.Bytes)
	return len(in.Bytes), poller.Rearm
}
func (echoHandler) Timeout(poller.Conn, time.Duration) poller.Verdict { return poller.Rearm }
func (echoHandler) Closed(poller.ID, poller.Cause)                    {}
func (echoHandler) PassEnd(int)                                       {}

// serveEcho is the process of one server: it prints its address, and its CPU time in ns whenever a line comes in.
func serveEcho(kind string) error {
	pin(0)
	var addr net.Addr
	if kind == "engine" {
		e, err := poller.New(poller.Config{Loops: 1}, echoHandler{}, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		if addr, err = e.Listen(poller.Listener{Addr: "127.0.0.1:0"}); err != nil {
			return err
		}
	} else {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addr = ln.Addr()
		go func() {
			if err := bareEcho(ln, map[string]uint32{"bare-oneshot": unix.EPOLLONESHOT}[kind]); err != nil {
				panic(err)
			}
		}()
	}
	fmt.Println(addr)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var ru unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
			return err
		}
		fmt.Println(ru.Utime.Nano() + ru.Stime.Nano())
	}
	return nil
}

// echoServer is a running server process.
type echoServer struct {
	addr string
	in   io.Writer
	out  *bufio.Scanner
	load *load
}

func startEcho(b *testing.B, kind string, procs int) *echoServer {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoEnv+"="+kind, fmt.Sprintf("GOMAXPROCS=%d", procs))
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
	s := &echoServer{in: in, out: bufio.NewScanner(out)}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	if !s.out.Scan() {
		b.Fatalf("server %s did not start", kind)
	}
	s.addr = s.out.Text()
	return s
}

// cpu is the CPU time that the server has used.
func (s *echoServer) cpu(b *testing.B) time.Duration {
	b.Helper()
	var ns int64
	if _, err := fmt.Fprintln(s.in); err != nil {
		b.Fatal(err)
	}
	if !s.out.Scan() {
		b.Fatal("server has ended")
	}
	if _, err := fmt.Sscan(s.out.Text(), &ns); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ns)
}

// BenchmarkEcho measures the server's CPU time a message (user and system), bare loop and engine by turns, and reports
// the median of the rounds and the engine's ratio to the floor. Run it with -benchtime 1x: a round is long enough.
func BenchmarkEcho(b *testing.B) {
	for _, procs := range []int{1, 2} {
		for _, shape := range []struct{ conns, inflight, messages int }{{1000, 1, 100_000}, {50, 16, 1_000_000}} {
			b.Run(fmt.Sprintf("procs=%d/%dx%d", procs, shape.conns, shape.inflight), func(b *testing.B) {
				for range b.N {
					measureEcho(b, procs, shape.conns, shape.inflight, shape.messages)
				}
			})
		}
	}
}

func measureEcho(b *testing.B, procs, conns, inflight, messages int) {
	const rounds = 5
	pin(1)
	defer pin(0, 1)
	var servers []*echoServer
	for _, kind := range echoKinds {
		s := startEcho(b, kind, procs)
		s.load = newLoad(b, s.addr, conns, inflight)
		defer s.load.close()
		s.load.run(b, messages/10)
		servers = append(servers, s)
	}
	spent := make([][]float64, len(servers))
	for range rounds {
		for i, s := range servers {
			before := s.cpu(b)
			s.load.run(b, messages)
			spent[i] = append(spent[i], float64(s.cpu(b)-before)/float64(messages)/1000)
		}
	}
	medians := make([]float64, len(servers))
	for i := range spent {
		slices.Sort(spent[i])
		medians[i] = spent[i][rounds/2]
		b.ReportMetric(medians[i], echoKinds[i]+"-µs/msg")
	}
	for i := 1; i < len(medians); i++ {
		b.ReportMetric(medians[i]/medians[0], echoKinds[i]+"/bare")
	}
	b.ReportMetric(0, "ns/op")
}
