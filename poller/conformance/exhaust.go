package conformance

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller"
)

// exhaustEnv tells the test binary that it is the process with few descriptors.
const exhaustEnv = "SLUICE_CONFORMANCE_FEW_DESCRIPTORS"

// fewDescriptors is less than the clients want and more than the runtime needs.
const fewDescriptors = 48

// report is what the process with few descriptors says when it is asked.
type report struct {
	open, paused, refused int
	cpu                   time.Duration
}

// testExhaustion runs out of descriptors: accepting pauses without spinning, clients in the backlog are told, those that
// are connected go on, and accepting recovers. The engine runs in a process of its own with a low limit.
func testExhaustion(t *testing.T, newEngine NewEngine) {
	if os.Getenv(exhaustEnv) != "" {
		serveFew(t, newEngine)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = append(os.Environ(), exhaustEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	defer func() {
		_ = in.Close()
		for lines.Scan() {
			if strings.Contains(lines.Text(), "FAIL") {
				t.Error(lines.Text())
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the process with few descriptors: %v", err)
		}
	}()
	ask := func(format string, args ...any) {
		for lines.Scan() {
			if n, _ := fmt.Sscanf(lines.Text(), format, args...); n == len(args) {
				return
			}
		}
		t.Fatal("the process with few descriptors has ended")
	}
	f := &fixture{T: t}
	ask("addr=%s", &f.addr)
	f.exhaust(func() (r report) {
		if _, err := fmt.Fprintln(in, "?"); err != nil {
			t.Fatal(err)
		}
		ask("open=%d paused=%d refused=%d cpu=%d", &r.open, &r.paused, &r.refused, &r.cpu)
		return r
	})
}

// exhaust plays the clients.
func (f *fixture) exhaust(stats func() report) {
	var clients []*net.TCPConn
	for range 2 * fewDescriptors {
		clients = append(clients, f.dial())
	}
	f.eventually("accepting pauses", func() bool { return stats().paused > 2 })
	first, begun := stats(), time.Now()
	f.eventually("a second of pauses", func() bool { return time.Since(begun) > time.Second })
	last := stats()
	if spent := last.cpu - first.cpu; spent > 500*time.Millisecond {
		f.Errorf("%v of CPU in a second of waiting for descriptors", spent)
	}
	if n := last.paused - first.paused; n > 100 {
		f.Errorf("accepting was tried %d times in a second", n)
	}
	if last.refused == 0 {
		f.Error("nobody in the backlog was told")
	}
	f.write(clients[0], []byte("go on"))
	f.read(clients[0], len("go on"))
	for _, c := range clients {
		_ = c.Close()
	}
	f.eventually("all have ended", func() bool { return stats().open == 0 })
	f.eventually("accepting recovers", func() bool { return !f.refused(f.dial()) })
}

// serveFew is the process with few descriptors: it echoes, and reports when a line comes in.
func serveFew(t *testing.T, newEngine NewEngine) {
	lim := unix.Rlimit{Cur: fewDescriptors, Max: fewDescriptors}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	f := start(t, newEngine, poller.Config{Reserve: 1}, &handler{})
	fmt.Printf("\naddr=%s\n", f.addr)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var ru unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
			t.Fatal(err)
		}
		s := f.Stats()
		fmt.Printf("\nopen=%d paused=%d refused=%d cpu=%d\n", s.Open[0], s.AcceptPaused, s.Refused[poller.CauseConnectionLimit],
			ru.Utime.Nano()+ru.Stime.Nano())
	}
}
