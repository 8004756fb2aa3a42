package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-im/sluice/bench/load"
)

// Options are what every scenario takes.
type Options struct {
	Transport load.Transport
	Conns     int
	InFlight  int
	// First is the number of the first client, for its user id.
	First int
	// Rate is messages a second, open loop; 0 = closed loop.
	Rate    int
	Size    int
	Seconds int
	// Dialers, DialRate and FrameBytes are those of load.Options.
	Dialers, DialRate, FrameBytes int
	// Rounds is how often each figure is taken; medians are reported.
	Rounds int
	Engine string
	Mode   string
	// Redis is the address of a server to use; empty = one that is embedded in a process of its own.
	Redis string
	// Against, when set, is another build of this program, whose gateway is measured in the same run.
	Against string
	// Profile, when set, is a file for a CPU profile of the gateway, taken in a round of its own after the others.
	Profile string
	// JSON, when set, is a file that the figures are written to as well.
	JSON string
	Out  io.Writer
}

// Figure is one line of a report.
type Figure struct {
	Name string `json:"name"`
	// MicrosPerMessage is CPU time of the server process, user and system, per message there and its answer back.
	MicrosPerMessage float64 `json:"cpu_us_per_message"`
	// Spread is (max-min)/median over the rounds.
	Spread float64     `json:"spread"`
	Load   load.Result `json:"load"`
	// Extra are figures that only this line has.
	Extra map[string]float64 `json:"extra,omitempty"`
}

// Report is what a scenario found.
type Report struct {
	Scenario string   `json:"scenario"`
	Machine  string   `json:"machine"`
	Figures  []Figure `json:"figures"`
	Notes    []string `json:"notes,omitempty"`
}

// cores pins the server to the first core and everything else to the others, so that the load does not disturb what is
// measured. With one core nothing is pinned.
func cores() (server, rest []int) {
	if runtime.NumCPU() < 2 {
		return nil, nil
	}
	for c := 1; c < runtime.NumCPU(); c++ {
		rest = append(rest, c)
	}
	return []int{0}, rest
}

// subject is a server under load.
type subject struct {
	name   string
	server *Process
	// load drives the server and tells how many messages that were.
	load *Process
	// listen receives what the server sends by itself; nil when load does.
	listen *Process
}

// startLoad starts a generator against addr and waits until all its clients are connected.
func startLoad(ctx context.Context, o Options, transport load.Transport, addr string) (*Process, error) {
	_, rest := cores()
	return StartProcess(ctx, "load", rest, "bench-child", "load", "--addr", addr, "--transport", string(transport),
		"--conns", strconv.Itoa(o.Conns), "--first", strconv.Itoa(o.First), "--in-flight", strconv.Itoa(o.InFlight), "--rate", strconv.Itoa(o.Rate),
		"--size", strconv.Itoa(o.Size), "--dialers", strconv.Itoa(o.Dialers), "--dial-rate", strconv.Itoa(o.DialRate), "--frame-bytes", strconv.Itoa(o.FrameBytes))
}

// round is one measured run of d.
func (s *subject) round(ctx context.Context, d time.Duration) (micros float64, r load.Result, err error) {
	before, err := s.server.CPU()
	if err != nil {
		return 0, r, err
	}
	if r, err = s.run(ctx, d); err != nil {
		return 0, r, err
	}
	after, err := s.server.CPU()
	if err != nil {
		return 0, r, err
	}
	if r.Messages == 0 {
		return 0, r, fmt.Errorf("%s answered nothing", s.name)
	}
	return float64(after-before) / float64(time.Microsecond) / float64(r.Messages), r, nil
}

// run makes the load go on for d and tells what it did.
func (s *subject) run(ctx context.Context, d time.Duration) (r load.Result, err error) {
	if s.listen != nil {
		if err := s.listen.Say("run " + d.String()); err != nil {
			return r, err
		}
	}
	if err := s.load.answer(ctx, "run "+d.String(), d, &r); err != nil || s.listen == nil {
		return r, err
	}
	var heard load.Result
	if err := s.listen.hear(ctx, d, &heard); err != nil {
		return r, err
	}
	r.Heard = heard.Messages
	return r, nil
}

// measure takes turns: one round of each subject, again and again, so that a machine that changes its speed changes it
// for all of them.
func measure(ctx context.Context, o Options, subjects []*subject) ([]Figure, error) {
	d := time.Duration(o.Seconds) * time.Second
	micros := make([][]float64, len(subjects))
	figures := make([]Figure, len(subjects))
	for i, s := range subjects { // warm up: pools, heap and caches reach their size
		figures[i].Name = s.name
		if _, _, err := s.round(ctx, min(d, time.Second)); err != nil {
			return nil, err
		}
	}
	for range o.Rounds {
		for i, s := range subjects {
			us, r, err := s.round(ctx, d)
			if err != nil {
				return nil, err
			}
			micros[i] = append(micros[i], us)
			figures[i].Load = r
		}
	}
	for i := range figures {
		m := micros[i]
		slices.Sort(m)
		figures[i].MicrosPerMessage = m[len(m)/2]
		figures[i].Spread = (m[len(m)-1] - m[0]) / m[len(m)/2]
	}
	return figures, nil
}

// print writes the report as a table whose last column is the ratio to the first line.
func (r *Report) print(o Options) error {
	w := o.Out
	_, _ = fmt.Fprintf(w, "%s\n%s\n", r.Scenario, r.Machine)
	if len(r.Figures) > 0 {
		_, _ = fmt.Fprintf(w, "%-22s %14s %8s %12s %10s %10s %8s\n", "server", "CPU us/message", "spread", "messages/s", "p50", "p99", "ratio")
	}
	for _, f := range r.Figures {
		_, _ = fmt.Fprintf(w, "%-22s %14.2f %7.0f%% %12.0f %10v %10v %8.2f\n", f.Name, f.MicrosPerMessage, 100*f.Spread,
			float64(f.Load.Messages)/f.Load.Elapsed.Seconds(), f.Load.P50, f.Load.P99, f.MicrosPerMessage/r.Figures[0].MicrosPerMessage)
		for name, v := range f.Extra {
			_, _ = fmt.Fprintf(w, "    %s: %.2f\n", name, v)
		}
		if f.Load.Failed > 0 {
			_, _ = fmt.Fprintf(w, "    %d messages could not be sent in time\n", f.Load.Failed)
		}
		if f.Load.Heard > 0 && f.Load.Heard < f.Load.Messages*99/100 {
			_, _ = fmt.Fprintf(w, "    %d of %d messages had arrived at the end\n", f.Load.Heard, f.Load.Messages)
		}
	}
	for _, n := range r.Notes {
		_, _ = fmt.Fprintln(w, n)
	}
	if o.JSON == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.JSON, append(b, '\n'), 0o644)
}

// machine is one line about where the figures come from.
func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	loadavg, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(loadavg), " ")
	return fmt.Sprintf("%d x %s, Linux %s, %s, load average at the start %s", runtime.NumCPU(), model, strings.TrimSpace(string(kernel)), runtime.Version(), first)
}
