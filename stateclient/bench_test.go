package stateclient

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
)

// loop is the relay's own part of a round trip, without gRPC and the network: Submit, batch, encode; decode, answer.
type loop struct {
	relay  *relay
	stream *stream
	pass   []Uplink
	taken  []bool
	reply  statev1.DownlinkBatch
	in     *statev1.DownlinkBatch
	recv   vtcodec.Borrowed
	got    int
}

func (b *loop) Answers(batch []Downlink) { b.got += len(batch) }

func newLoop(items int) *loop {
	b := &loop{in: &statev1.DownlinkBatch{}}
	b.recv.Message = b.in
	cfg := quick("127.0.0.1:1")
	cfg.StreamsPerBackend = 1
	r := &relay{cfg: cfg, sink: b, log: quiet(), started: time.Now(), kick: make(chan struct{}, 1)}
	r.metrics, _ = newMetrics(nil, nil)
	be := newBackend(r, "127.0.0.1:1")
	be.member.Store(true)
	be.lanes[0].up.Store(true)
	r.backends = []*backend{be}
	r.limbo = newLane(r, &backend{relay: r})
	r.publish()
	b.relay, b.stream = r, be.lanes[0].driver.(*stream)
	b.stream.generation = 1
	b.taken = make([]bool, items)
	for i := range items {
		b.pass = append(b.pass, Uplink{Peer: peer(i + 1), Payload: make([]byte, 64)})
		b.reply.Items = append(b.reply.Items, &statev1.DownlinkItem{ConnId: uint64(i + 1), Payload: make([]byte, 64)})
	}
	return b
}

func (b *loop) round(t testing.TB) {
	now := time.Now()
	for i := range b.pass {
		b.pass[i].Seq++
		b.pass[i].Received = now
		b.reply.Items[i].ConnSeq++
	}
	b.relay.Submit(b.pass, b.taken)
	for {
		ok, err := b.stream.fill()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		b.stream.encoded.Discard()
	}
	data, err := vtcodec.Codec{}.Marshal(&b.reply)
	if err == nil {
		err = vtcodec.Codec{}.Unmarshal(data, &b.recv)
	}
	if err != nil {
		t.Fatal(err)
	}
	data.Free()
	b.stream.hear(b.in)
	b.recv.Release()
}

// An uplink costs no allocation; a batch costs the few that gRPC's buffers need.
func TestNoAllocationsPerUplink(t *testing.T) {
	const items = 400
	b := newLoop(items)
	for range 5 {
		b.round(t)
	}
	if n := testing.AllocsPerRun(100, func() { b.round(t) }); n > items/20 {
		t.Errorf("%v allocations for %d uplinks", n, items)
	}
	if b.got != items*106 {
		t.Errorf("%d answers", b.got)
	}
}

func BenchmarkLoop(b *testing.B) {
	for _, items := range []int{1, 32, 128, 512} {
		b.Run(fmt.Sprintf("batch=%d", items), func(b *testing.B) {
			l := newLoop(items)
			l.round(b)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				l.round(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*items), "ns/uplink")
		})
	}
}

// serverEnv makes the test binary a logic tier in a process of its own, so that a benchmark's CPU time is the gateway's
// side alone.
const serverEnv = "SLUICE_TEST_LOGIC_TIER"

func serveForBenchmarks() {
	b := &logicTier{
		relay: func(s batches) error {
			in := &statev1.UplinkBatch{}
			recv := vtcodec.Borrowed{Message: in}
			defer recv.Release()
			out := &statev1.DownlinkBatch{}
			var spare []*statev1.DownlinkItem
			for {
				if err := s.RecvMsg(&recv); err != nil {
					return ended(err)
				}
				for len(spare) < len(in.Items) {
					spare = append(spare, &statev1.DownlinkItem{})
				}
				out.Items = spare[:len(in.Items)]
				for i, it := range in.Items {
					out.Items[i].ConnId, out.Items[i].ConnSeq, out.Items[i].Payload = it.ConnId, it.ConnSeq, it.Payload
				}
				if err := s.SendMsg(out); err != nil {
					return err
				}
			}
		},
		receive: func(_ context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
			return &statev1.ReceiveMessageResponse{ResponsePayload: req.Payload}, nil
		},
	}
	if err := b.listen("127.0.0.1:0"); err != nil {
		panic(err)
	}
	fmt.Println(b.addr)
	_, _ = io.Copy(io.Discard, os.Stdin)
	b.kill()
}

// otherProcess starts a logic tier in another process and returns its address.
func otherProcess(b *testing.B) string {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"=1")
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
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

type tally struct {
	want atomic.Int64
	all  chan struct{}
	bad  atomic.Int64
}

func (s *tally) Answers(batch []Downlink) {
	for _, d := range batch {
		if d.Outcome != Answered {
			s.bad.Add(1)
		}
	}
	if s.want.Add(-int64(len(batch))) == 0 {
		s.all <- struct{}{}
	}
}

func cpu() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkRelay measures the CPU time of the gateway's side of one uplink and its answer. Passes of the given size are
// answered before the next one is submitted.
func BenchmarkRelay(b *testing.B) {
	for _, c := range []struct {
		mode  string
		batch int
	}{{ModeStream, 1}, {ModeStream, 32}, {ModeStream, 128}, {ModeUnary, 1}, {ModeUnary, 32}, {ModeUnary, 128}} {
		b.Run(fmt.Sprintf("mode=%s/batch=%d", c.mode, c.batch), func(b *testing.B) {
			sink := &tally{all: make(chan struct{}, 1)}
			cfg := quick(otherProcess(b))
			cfg.Mode, cfg.StreamsPerBackend, cfg.Timeout = c.mode, 1, 10*time.Second
			r := open(b, cfg, sink)
			eventually(b, "ready", r.Ready)
			us, taken := pass(peers(c.batch), 0), make([]bool, c.batch)
			for i := range us {
				us[i].Payload = make([]byte, 64)
			}
			round := func() {
				now := time.Now()
				for i := range us {
					us[i].Seq++
					us[i].Received = now
				}
				sink.want.Store(int64(len(us)))
				r.Submit(us, taken)
				<-sink.all
			}
			for range 20 {
				round()
			}
			b.ReportAllocs()
			b.ResetTimer()
			began := cpu()
			for range b.N {
				round()
			}
			b.ReportMetric(float64((cpu()-began).Nanoseconds())/float64(b.N*c.batch), "cpu-ns/uplink")
			if n := sink.bad.Load(); n != 0 {
				b.Fatalf("%d uplinks failed", n)
			}
		})
	}
}
