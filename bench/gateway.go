package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-im/sluice/bench/load"
)

// fetchMax bounds one look at an admin page.
const fetchMax = 10 * time.Second

// pageBytesMax bounds what is read of one.
const pageBytesMax = 16 << 20

// system is a gateway with what it needs around it.
type system struct {
	logic, redis, gateway *Process
	// certificate is of the wss listener, where there is one.
	certificate certificate
}

// startSystem starts a logic tier that only answers (logic are more of its flags), an embedded Redis and the real gateway,
// each as a process of its own, so that the gateway's CPU time is the gateway's alone.
func startSystem(ctx context.Context, o Options, logic ...string) (*system, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startSystemOf(ctx, self, o, logic...)
}

// startSystemOf is startSystem with the gateway of another build.
func startSystemOf(ctx context.Context, binary string, o Options, logic ...string) (*system, error) {
	server, rest := cores()
	s := &system{}
	var err error
	if s.logic, err = StartProcess(ctx, "logic", rest, append([]string{"bench-child", "logic"}, logic...)...); err != nil {
		return nil, err
	}
	redis := o.Redis
	if redis == "" {
		if s.redis, err = StartProcess(ctx, "redis", rest, "bench-child", "redis"); err != nil {
			s.stop()
			return nil, err
		}
		redis = s.redis.Addr
	}
	// Its ready line is "ready WS TCP ADMIN".
	args := []string{"bench-child", "gateway", "--logic", s.logic.Addr, "--redis", redis, "--engine", o.Engine, "--mode", o.Mode}
	if o.Transport == load.WSS {
		if s.certificate, err = newCertificate(); err != nil {
			s.stop()
			return nil, err
		}
		args = append(args, "--cert", s.certificate.cert, "--key", s.certificate.key)
	}
	s.gateway, err = startBinary(ctx, binary, "gateway", server, args...)
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *system) stop() {
	for _, p := range []*Process{s.gateway, s.redis, s.logic} {
		if p != nil {
			p.Stop()
		}
	}
	s.certificate.remove()
}

func addrOf(gw *Process, t load.Transport) string {
	f := strings.Fields(gw.Addr)
	switch t {
	case load.TCP:
		return f[1]
	case load.WSS:
		return f[3]
	}
	return f[0]
}

func adminOf(gw *Process) string { return strings.Fields(gw.Addr)[2] }

// metrics reads a gateway's counters; series with labels are added up by name.
func metrics(ctx context.Context, gw *Process) (map[string]float64, error) {
	body, err := fetch(ctx, "http://"+adminOf(gw)+"/metrics", fetchMax)
	if err != nil {
		return nil, err
	}
	sums := map[string]float64{}
	for line := range strings.Lines(body) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(series, "{")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("metric line %q: %w", line, err)
		}
		sums[name] += v
	}
	return sums, nil
}

// batches is what the relay's batches were so far.
type batches struct{ count, sum float64 }

func batchesOf(ctx context.Context, gw *Process) (b batches, err error) {
	m, err := metrics(ctx, gw)
	return batches{m["sluice_relay_batch_size_count"], m["sluice_relay_batch_size_sum"]}, err
}

// addBatch adds the mean batch since before: the figure to look at beside the cost of the relay.
func addBatch(ctx context.Context, gw *Process, before batches, f *Figure) error {
	b, err := batchesOf(ctx, gw)
	if err != nil {
		return err
	}
	if n := b.count - before.count; n > 0 {
		f.Extra = map[string]float64{"mean batch": (b.sum - before.sum) / n}
	}
	return nil
}

func fetch(ctx context.Context, url string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, pageBytesMax))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(b), nil
}
