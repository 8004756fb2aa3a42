// Package bench measures the real programs from outside: it starts them as processes, loads them over loopback, and reads
// their CPU time and memory from /proc. Figures are ratios to a bare epoll echo of the same run, since machines differ
// and are noisy; CPU time per message is what survives the noise.
package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// readyMax bounds how long a process may take until it says that it is ready.
const readyMax = 2 * time.Minute

// linesMax is how many lines a process may print before somebody reads them.
const linesMax = 64

// tick is the kernel's unit in /proc/PID/stat (USER_HZ is 100 on every Linux).
const tick = 10 * time.Millisecond

// stopMax bounds how long a process may take to end by itself.
const stopMax = 10 * time.Second

// Process is one process under measurement.
type Process struct {
	Name string
	// Addr is what the process printed after "ready ".
	Addr  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	// lines are what the process prints after its ready line.
	lines chan string
	done  chan struct{}
}

// StartProcess runs this program's own binary with other arguments, pinned to the given cores (none = all), and waits for
// its line "ready ADDR" on standard output.
func StartProcess(ctx context.Context, name string, cores []int, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startBinary(ctx, self, name, cores, args...)
}

// startBinary is StartProcess with another build of this program.
func startBinary(ctx context.Context, binary, name string, cores []int, args ...string) (*Process, error) {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stderr = os.Stderr
	// Children end with this process, however it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(max(len(cores), 1)))
	if len(cores) == 0 {
		cmd.Env = os.Environ()
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Pdeathsig goes by the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := withAffinity(cores, cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, cmd: cmd, stdin: stdin, lines: make(chan string, linesMax), done: make(chan struct{})}
	go p.follow(out)
	line, err := p.Line(ctx, readyMax)
	addr, ok := strings.CutPrefix(line, "ready ")
	if err != nil || !ok {
		p.Stop()
		return nil, fmt.Errorf("%s was not ready: %q %w", name, line, err)
	}
	p.Addr = addr
	return p, nil
}

// follow passes on what the process prints, until it ends.
func (p *Process) follow(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		select {
		case p.lines <- lines.Text():
		default: // nobody listens to a process that talks so much
		}
	}
	_ = p.cmd.Wait()
	close(p.done)
}

// Line waits for the next line that the process prints.
func (p *Process) Line(ctx context.Context, within time.Duration) (string, error) {
	select {
	case line := <-p.lines:
		return line, nil
	case <-p.done:
		return "", fmt.Errorf("%s ended", p.Name)
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(within):
		return "", fmt.Errorf("%s said nothing for %v", p.Name, within)
	}
}

// Say writes a line to the process's standard input.
func (p *Process) Say(line string) error {
	_, err := io.WriteString(p.stdin, line+"\n")
	return err
}

// answer says a line and decodes the JSON line that comes back after at least d.
func (p *Process) answer(ctx context.Context, line string, d time.Duration, into any) error {
	if err := p.Say(line); err != nil {
		return err
	}
	return p.hear(ctx, d, into)
}

// hear decodes the next line that the process prints.
func (p *Process) hear(ctx context.Context, d time.Duration, into any) error {
	text, err := p.Line(ctx, d+readyMax)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%s: %q: %w", p.Name, text, err)
	}
	return nil
}

// withAffinity starts a child on the given cores: it inherits the affinity of the thread that forks it.
func withAffinity(cores []int, start func() error) error {
	if len(cores) == 0 {
		return start()
	}
	var before, want unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return start() // where cores cannot be chosen, the figures are noisier, not wrong
	}
	for _, c := range cores {
		want.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		return start()
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	return start()
}

// Stop ends the process, gently first.
func (p *Process) Stop() {
	_ = p.stdin.Close()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopMax):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// CPU is the process's user and system time so far. The kernel scales the two to the exact run time, in steps of 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0, errors.New("unexpected /proc/PID/stat")
	}
	var ticks int64
	for _, s := range f[11:13] { // utime and stime
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// PSS is the process's proportional set size in bytes.
func (p *Process) PSS() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("smaps_rollup has no Pss")
}
