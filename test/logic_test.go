package test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/test/cluster"
)

// logicTier acknowledges every MESSAGEUP, as slowly as pause says, and remembers the order in which it took them.
type logicTier struct {
	statev1.UnimplementedStateServerServer
	pause func() time.Duration

	mu sync.Mutex
	// Guarded by mu.
	applied []string
}

func startLogicTier(t *testing.T, pause func() time.Duration) (*logicTier, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tier := &logicTier{pause: pause}
	s := grpc.NewServer()
	statev1.RegisterStateServerServer(s, tier)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return tier, l.Addr().String()
}

func (l *logicTier) Relay(stream grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error {
	for {
		up, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		down := &statev1.DownlinkBatch{}
		if len(up.Items) > 0 {
			<-time.After(l.pause()) // the logic tier's own work
		}
		for _, it := range up.Items {
			down.Items = append(down.Items, &statev1.DownlinkItem{ConnId: it.ConnId, ConnSeq: it.ConnSeq, Payload: l.apply(it)})
		}
		if err := stream.Send(down); err != nil {
			return err
		}
	}
}

func (l *logicTier) apply(it *statev1.UplinkItem) []byte {
	h, err := codec.Scan(it.Payload)
	if it.Kind != statev1.UplinkKind_UPLINK_KIND_FRAME || err != nil || h.Type != clientv1.CommandType_MESSAGEUP {
		return nil
	}
	l.mu.Lock()
	l.applied = append(l.applied, string(h.UUID))
	l.mu.Unlock()
	return codec.AppendCommand(nil, clientv1.CommandType_MESSAGEACK, 0, &clientv1.MessageAck{Uuid: string(h.UUID)})
}

// rawClient is a TCP client without any reliability of its own.
type rawClient struct {
	t    *testing.T
	conn net.Conn
	in   []byte
	s    codec.Stream
}

func dialRaw(t *testing.T, g *cluster.Gateway, uid string) *rawClient {
	t.Helper()
	return dialRawWith(t, &net.Dialer{}, g, uid)
}

func dialRawWith(t *testing.T, d *net.Dialer, g *cluster.Gateway, uid string) *rawClient {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		conn, err := d.DialContext(t.Context(), "tcp", g.TCP)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		c := &rawClient{t: t, conn: conn, s: codec.NewClientStream(codec.TCP)}
		c.write(codec.AppendCommand(nil, clientv1.CommandType_LOGIN, 0, &clientv1.Login{Token: token(t, uid), DeviceId: "raw"}))
		cmd := c.next(30 * time.Second)
		if cmd.Type == clientv1.CommandType_LOGIN_REPLY {
			return c
		}
		// A Redis that a busy machine has held up for half a second is asked again, as every client does.
		if !strings.Contains(string(cmd.Data), reason.RoutesUnavailable.String()) || time.Now().After(end) {
			t.Fatalf("LOGIN was answered with %v %q", cmd.Type, cmd.Data)
		}
	}
}

func (c *rawClient) write(commands ...[]byte) {
	var out []byte
	for _, cmd := range commands {
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(cmd))), cmd...)
	}
	if _, err := c.conn.Write(out); err != nil {
		c.t.Errorf("write: %v", err)
	}
}

// next waits for the next command.
func (c *rawClient) next(within time.Duration) *clientv1.Command {
	c.t.Helper()
	cmd, err := c.read(within)
	if err != nil {
		c.t.Fatalf("read: %v", err)
	}
	return cmd
}

// read waits for the next command, or for the end.
func (c *rawClient) read(within time.Duration) (*clientv1.Command, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return nil, err
	}
	limits := codec.Limits{FrameBytes: 1 << 20, Fragments: 1}
	buf := make([]byte, 64<<10)
	for {
		f, used, err := c.s.Next(c.in, &limits)
		if err != nil {
			return nil, err
		}
		if f.Kind == codec.KindCommand {
			cmd := &clientv1.Command{}
			if err := cmd.UnmarshalVT(f.Payload); err != nil {
				return nil, err
			}
			c.in = c.in[used:]
			return cmd, nil
		}
		c.in = c.in[used:]
		n, err := c.conn.Read(buf)
		if err != nil {
			return nil, err
		}
		c.in = append(c.in, buf[:n]...)
	}
}

func numbered(i int) []byte {
	return codec.AppendCommand(nil, clientv1.CommandType_MESSAGEUP, 0,
		&clientv1.MessageUp{Uuid: fmt.Sprintf("m-%05d", i), Type: 1, Content: "x", ReceiverId: "nobody"})
}

// answers reads n MESSAGEACKs and counts them by status; each uuid has exactly one.
func (c *rawClient) answers(n int, within time.Duration) map[clientv1.MessageAckStatus]int {
	c.t.Helper()
	seen := map[string]bool{}
	count := map[clientv1.MessageAckStatus]int{}
	for range n {
		cmd := c.next(within)
		if cmd.Type != clientv1.CommandType_MESSAGEACK {
			c.t.Fatalf("unexpected %v", cmd.Type)
		}
		ack := &clientv1.MessageAck{}
		if err := ack.UnmarshalVT(cmd.Data); err != nil {
			c.t.Fatal(err)
		}
		if seen[ack.Uuid] {
			c.t.Fatalf("%s was answered twice", ack.Uuid)
		}
		seen[ack.Uuid] = true
		count[ack.Status]++
	}
	return count
}

// TestPipelinedMessagesKeepTheirOrder: one client writes 5,000 numbered messages without waiting, while the logic tier
// takes 0-20 ms a batch.
func TestPipelinedMessagesKeepTheirOrder(t *testing.T) {
	const n = 5000
	tier, addr := startLogicTier(t, func() time.Duration { return time.Duration(rand.IntN(20_000)) * time.Microsecond })
	// Order among messages that are answered OK is what is promised; a slow machine must not make one time out.
	g := cluster.StartGateway(t, testenv.Redis(t).Addr, addr, append(limitsUp, "relay.timeout=1m")...)
	c := dialRaw(t, g, "alice")
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := 0; i < n; i += 100 {
			var some [][]byte
			for j := i; j < i+100; j++ {
				some = append(some, numbered(j))
			}
			c.write(some...)
		}
	}()
	if count := c.answers(n, time.Minute); count[clientv1.MessageAckStatus_ACK_OK] != n {
		t.Errorf("answers: %v, wanted %d OK", count, n)
	}
	<-written
	tier.mu.Lock()
	defer tier.mu.Unlock()
	if len(tier.applied) != n {
		t.Fatalf("%d messages were applied, %d were sent", len(tier.applied), n)
	}
	for i, uuid := range tier.applied {
		if want := fmt.Sprintf("m-%05d", i); uuid != want {
			t.Fatalf("message %d applied is %s, wanted %s", i, uuid, want)
		}
	}
}

// TestLateAnswers: a logic tier that needs 400 ms is always later than the gateway's 300. Every uplink is answered once,
// with RETRY; the late answers are dropped and counted, and the counters add up.
func TestLateAnswers(t *testing.T) {
	const n = 40
	_, addr := startLogicTier(t, func() time.Duration { return 400 * time.Millisecond })
	g := cluster.StartGateway(t, testenv.Redis(t).Addr, addr, limitsUp...)
	c := dialRaw(t, g, "alice")
	for i := range n {
		c.write(numbered(i))
	}
	count := c.answers(n, time.Minute)
	if count[clientv1.MessageAckStatus_ACK_RETRY] == 0 || count[clientv1.MessageAckStatus_ACK_FAIL] > 0 {
		t.Errorf("answers: %v, wanted RETRY for what timed out and no FAIL", count)
	}
	metric := func(name string, labels ...string) float64 { return cluster.Metric(t, g.Admin, name, labels...) }
	cluster.Eventually(t, 30*time.Second, "nothing is in flight and late answers are counted", func() bool {
		return metric("sluice_uplinks_inflight") == 0 && metric("sluice_answers_late_total") > 0
	})
	received, ok, retry := metric("sluice_uplinks_received_total"), metric("sluice_uplinks_total", `result="ok"`), metric("sluice_uplinks_total", `result="retry"`)
	if received != n || ok+retry != n {
		t.Errorf("received %.0f, ok %.0f, retry %.0f; wanted %d in all", received, ok, retry, n)
	}
	// Nothing else comes: the next answer is that of the next message.
	c.write(codec.AppendCommand(nil, clientv1.CommandType_HEARTBEAT, 0, nil))
	if cmd := c.next(10 * time.Second); cmd.Type != clientv1.CommandType_HEARTBEAT {
		t.Errorf("after all answers came %v, wanted the heartbeat's", cmd.Type)
	}
}
