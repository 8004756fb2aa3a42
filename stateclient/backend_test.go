package stateclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
)

// soon bounds every wait of these tests. It is long because the machine may be busy; nothing waits for it in vain
// unless it fails.
const soon = 60 * time.Second

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(soon)
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// logicTier is a logic tier of the tests on a real gRPC server: what a stream does is a function of the test's.
type logicTier struct {
	statev1.UnimplementedStateServerServer
	addr   string
	server *grpc.Server
	served chan struct{}
	// option is one more of the server's; nil = none.
	option grpc.ServerOption
	// stock leaves gRPC's own codec in place.
	stock bool

	relay   func(stream grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error
	receive func(ctx context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error)
	connect func(ctx context.Context, req *statev1.ConnectRequest) (*statev1.ConnectResponse, error)
	ended   func(ctx context.Context, req *statev1.DisconnectRequest) (*statev1.DisconnectResponse, error)
	streams atomic.Int32
}

func (b *logicTier) Relay(s grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error {
	b.streams.Add(1)
	return b.relay(s)
}

func (b *logicTier) ReceiveMessage(ctx context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
	if b.receive == nil {
		return b.UnimplementedStateServerServer.ReceiveMessage(ctx, req)
	}
	return b.receive(ctx, req)
}

func (b *logicTier) Connect(ctx context.Context, req *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
	if b.connect == nil {
		return b.UnimplementedStateServerServer.Connect(ctx, req)
	}
	return b.connect(ctx, req)
}

func (b *logicTier) Disconnect(ctx context.Context, req *statev1.DisconnectRequest) (*statev1.DisconnectResponse, error) {
	if b.ended == nil {
		return b.UnimplementedStateServerServer.Disconnect(ctx, req)
	}
	return b.ended(ctx, req)
}

// start serves on addr, "" = a free port, until the test ends.
func (b *logicTier) start(t testing.TB, addr string) *logicTier {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	eventually(t, "listen on "+addr, func() bool { return b.listen(addr) == nil })
	t.Cleanup(b.kill)
	return b
}

func (b *logicTier) listen(addr string) error {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	b.addr = lis.Addr().String()
	opts := []grpc.ServerOption{grpc.MaxRecvMsgSize(messageMax), grpc.MaxSendMsgSize(messageMax)}
	if !b.stock {
		opts = append(opts, grpc.ForceServerCodecV2(vtcodec.Codec{}))
	}
	if b.option != nil {
		opts = append(opts, b.option)
	}
	b.server = grpc.NewServer(opts...)
	statev1.RegisterStateServerServer(b.server, b)
	b.served = make(chan struct{})
	server, served := b.server, b.served
	go func() {
		defer close(served)
		_ = server.Serve(lis)
	}()
	return nil
}

// kill ends the server with everything that is under way.
func (b *logicTier) kill() {
	b.server.Stop()
	<-b.served
}

// echo answers every item with its own payload, in order, until the stream ends. see is told of every item.
func echo(see func(it *statev1.UplinkItem)) func(grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error {
	return reply(func(it *statev1.UplinkItem) *statev1.DownlinkItem {
		if see != nil {
			see(it)
		}
		return &statev1.DownlinkItem{ConnId: it.ConnId, ConnSeq: it.ConnSeq, Payload: it.Payload}
	})
}

// reply answers every item with what answer makes of it, batch by batch; nil = not at all.
func reply(answer func(it *statev1.UplinkItem) *statev1.DownlinkItem) func(grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error {
	return func(s grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error {
		for {
			in, err := s.Recv()
			if err != nil {
				return ended(err)
			}
			out := &statev1.DownlinkBatch{}
			for _, it := range in.Items {
				if d := answer(it); d != nil {
					out.Items = append(out.Items, d)
				}
			}
			if err := s.Send(out); err != nil {
				return err
			}
		}
	}
}

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// watcher is a Sink that holds the relay to its contract: one answer for each uplink taken, in Seq order, never two
// Answers calls at once for one connection.
type watcher struct {
	t interface {
		Errorf(format string, args ...any)
	}

	mu    sync.Mutex
	conns map[uint64]*watched
	total int
	by    map[Outcome]int
	// onAnswer, when set, sees every answer, outside mu.
	onAnswer func(d Downlink)
}

type watched struct {
	busy  bool
	taken []uint64
	next  int
}

func newWatcher(t interface {
	Errorf(format string, args ...any)
}) *watcher {
	return &watcher{t: t, conns: map[uint64]*watched{}, by: map[Outcome]int{}}
}

func (w *watcher) conn(id uint64) *watched {
	c := w.conns[id]
	if c == nil {
		c = &watched{}
		w.conns[id] = c
	}
	return c
}

func (w *watcher) Answers(batch []Downlink) {
	w.mu.Lock()
	mine := map[uint64]bool{}
	for _, d := range batch {
		c := w.conn(d.ConnID)
		if c.busy && !mine[d.ConnID] {
			w.t.Errorf("two Answers calls at once for connection %d", d.ConnID)
		}
		c.busy, mine[d.ConnID] = true, true
		if c.next >= len(c.taken) {
			w.t.Errorf("connection %d: answer for %d, and nothing is unanswered", d.ConnID, d.Seq)
		} else if want := c.taken[c.next]; d.Seq != want {
			w.t.Errorf("connection %d: answer for %d, want %d", d.ConnID, d.Seq, want)
		}
		if d.Outcome != Answered && len(d.Payload) != 0 {
			w.t.Errorf("outcome %d with a payload", d.Outcome)
		}
		c.next++
		w.total++
		w.by[d.Outcome]++
	}
	w.mu.Unlock()
	if w.onAnswer != nil {
		for _, d := range batch {
			w.onAnswer(d)
		}
	}
	w.mu.Lock()
	for id := range mine {
		w.conn(id).busy = false
	}
	w.mu.Unlock()
}

// submit hands a pass to the relay; what is taken is expected from then on. Answers may come before Submit returns, so
// every uplink is expected first and the refused ones, always the last of their connection, are taken back: the relay
// cannot have answered those.
func (w *watcher) submit(r Relay, pass []Uplink) []bool {
	taken := make([]bool, len(pass))
	w.mu.Lock()
	for _, u := range pass {
		c := w.conn(u.Peer.ConnID)
		c.taken = append(c.taken, u.Seq)
	}
	w.mu.Unlock()
	r.Submit(pass, taken)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(pass) - 1; i >= 0; i-- {
		if taken[i] {
			continue
		}
		c := w.conn(pass[i].Peer.ConnID)
		if last := c.taken[len(c.taken)-1]; last != pass[i].Seq {
			w.t.Errorf("connection %d: %d refused though %d was taken", pass[i].Peer.ConnID, pass[i].Seq, last)
		}
		c.taken = c.taken[:len(c.taken)-1]
		if c.next > len(c.taken) {
			w.t.Errorf("connection %d: answer for a refused uplink", pass[i].Peer.ConnID)
		}
	}
	return taken
}

func (w *watcher) answered() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

func (w *watcher) count(o Outcome) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[o]
}

// open is the number of uplinks that were taken and are not answered.
func (w *watcher) open() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, c := range w.conns {
		n += len(c.taken) - c.next
	}
	return n
}

func peer(n int) *Peer {
	return &Peer{ConnID: uint64(n), UID: fmt.Sprintf("user%d", n), DeviceID: "d1", Epoch: int64(n), RemoteAddr: "127.0.0.1:1"}
}

func frame(p *Peer, seq uint64) Uplink {
	return Uplink{Peer: p, Seq: seq, Payload: fmt.Appendf(nil, "%d/%d", p.ConnID, seq), Received: time.Now()}
}

func peers(n int) []*Peer {
	ps := make([]*Peer, n)
	for i := range ps {
		ps[i] = peer(i + 1)
	}
	return ps
}

// pass is one frame of each.
func pass(ps []*Peer, seq uint64) []Uplink {
	us := make([]Uplink, len(ps))
	for i, p := range ps {
		us[i] = frame(p, seq)
	}
	return us
}

// quick is a configuration whose times are short enough for tests of what happens when they are over. Where every uplink
// has to be answered, a busy machine needs soon instead.
func quick(addrs ...string) Config {
	c := Default()
	c.Targets = "static:///"
	for i, a := range addrs {
		if i > 0 {
			c.Targets += ","
		}
		c.Targets += a
	}
	c.Incarnation = "gw-1"
	c.GatewayAddr = "127.0.0.1:9090"
	return c
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func open(t testing.TB, cfg Config, sink Sink) Relay {
	t.Helper()
	r, err := New(cfg, sink, Deps{Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func counted(t testing.TB, c prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}
