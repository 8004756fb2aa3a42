package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/stateclient"
)

// metric is the sum of a metric's series that have the label value; "" = all.
func (r *running) metric(t testing.TB, name, value string) float64 {
	t.Helper()
	families, err := r.g.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			wanted := value == ""
			for _, l := range m.GetLabel() {
				wanted = wanted || l.GetValue() == value
			}
			if f.GetName() == name && wanted {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func ackOf(uuid string, s clientv1.MessageAckStatus, why string) []byte {
	return codec.AppendCommand(nil, clientv1.CommandType_MESSAGEACK, 0, &clientv1.MessageAck{Uuid: uuid, Status: s, Reason: why})
}

// deed is what a logic tier does to a frame, by the content of its message.
func deed(command []byte) (payload []byte, err error) {
	h, _ := codec.Scan(command)
	var m clientv1.MessageUp
	_ = m.UnmarshalVT(h.Data)
	uuid := string(h.UUID)
	word, arg, _ := strings.Cut(m.GetContent(), " ")
	switch word {
	case "ok":
		return ackOf(uuid, clientv1.MessageAckStatus_ACK_OK, ""), nil
	case "retry":
		return ackOf(uuid, clientv1.MessageAckStatus_ACK_RETRY, "gap"), nil
	case "fail":
		return ackOf(uuid, clientv1.MessageAckStatus_ACK_FAIL, "not_member"), nil
	case "nameless":
		return ackOf("", clientv1.MessageAckStatus_ACK_OK, ""), nil
	case "other":
		return ackOf("somebody-elses", clientv1.MessageAckStatus_ACK_OK, ""), nil
	case "error":
		return codec.AppendCommand(nil, clientv1.CommandType_ERROR, 0, &clientv1.Error{Reason: "no_such_group"}), nil
	case "garbage":
		return []byte("\xff\xff\xff this is no command"), nil
	case "half":
		return codec.AppendCommand(nil, clientv1.CommandType_MESSAGEACK, 0, &clientv1.MessageAck{Uuid: uuid})[:6], nil
	case "huge":
		return message(1, 66000), nil
	case "status":
		for c := range codes.Code(18) {
			if c.String() == arg {
				s := status.New(c, "because")
				if c == codes.ResourceExhausted {
					s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(400 * time.Millisecond)})
				}
				return nil, s.Err()
			}
		}
	}
	return nil, nil // "empty", and commands that are no message
}

// troubled answers frames with deed, in both modes.
func troubled() *logic {
	l := &logic{}
	l.receive = func(_ context.Context, in *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
		payload, err := deed(in.GetPayload())
		return &statev1.ReceiveMessageResponse{ResponsePayload: payload}, err
	}
	l.answer = func(in *statev1.UplinkItem) ([]*statev1.DownlinkItem, error) {
		payload, err := deed(in.GetPayload())
		out := &statev1.DownlinkItem{ConnId: in.GetConnId(), ConnSeq: in.GetConnSeq(), Payload: payload}
		if err != nil {
			out.Status, out.Detail = uint32(status.Code(err)), "because"
			if status.Code(err) == codes.ResourceExhausted {
				out.RetryAfterMs = 400
			}
		}
		return []*statev1.DownlinkItem{out}, nil
	}
	return l
}

func (w *wire) say(uuid, content string) {
	w.t.Helper()
	w.command(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: uuid, ReceiverId: "bob", Content: content})
}

// TestTruthTable: what a client is told of every answer that a logic tier can give, in both modes, and what is counted.
func TestTruthTable(t *testing.T) {
	t.Parallel()
	const again, refused = "ACK_RETRY backend_error 250ms", "ACK_FAIL backend_refused"
	rows := []struct{ does, want, counter, label string }{
		{"ok", "ACK_OK", "sluice_uplinks_total", "ok"},
		{"retry", "ACK_RETRY gap", "sluice_uplinks_total", "retry"},
		{"fail", "ACK_FAIL not_member", "sluice_uplinks_total", "fail"},
		{"empty", "", "sluice_uplinks_total", "none"},
		{"nameless", "MESSAGEACK ACK_OK", "sluice_uplinks_total", "ok"},
		{"error", "ERROR no_such_group", "sluice_uplinks_total", "fail"},
		{"other", again, "sluice_answers_garbage_total", ""},
		{"garbage", again, "sluice_answers_garbage_total", ""},
		{"half", again, "sluice_answers_garbage_total", ""},
		{"huge", again, "sluice_answers_stray_total", "oversize"},
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		row := struct{ does, want, counter, label string }{"status " + c.String(), again, "sluice_uplinks_total", "retry"}
		switch c {
		case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
			row.want, row.label = refused, "fail"
		case codes.ResourceExhausted:
			row.want = "ACK_RETRY backend_error 400ms"
		}
		rows = append(rows, row)
	}
	for _, mode := range []string{stateclient.ModeStream, stateclient.ModeUnary} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := run(t, startLogic(t, troubled()), func(c *Config, d *Deps) {
				patient(c, d)
				c.Relay.Mode = mode
			})
			w := r.dial(t, protocolWS, "alice", "phone")
			for i, row := range rows {
				uuid, before := fmt.Sprint("u", i), r.metric(t, row.counter, row.label)
				w.say(uuid, row.does)
				switch {
				case row.want == "": // nothing is said, and the connection goes on
					eventually(t, "the answer has come", func() bool { return r.g.books().inflight == 0 })
				case strings.HasPrefix(row.want, "ACK"):
					w.want("MESSAGEACK " + uuid + " " + row.want)
				default:
					w.want(row.want)
				}
				eventually(t, row.does+" is counted", func() bool { return r.metric(t, row.counter, row.label) > before })
			}
			w.command(clientv1.CommandType_HEARTBEAT, nil)
			w.want("HEARTBEAT")
			r.settled(t)
			sum := r.g.books()
			out := uint64(0)
			for _, n := range sum.results {
				out += n
			}
			if int(sum.received) != len(rows) || out != sum.received || sum.inflight != 0 {
				t.Errorf("received %d, results %v, in flight %d", sum.received, sum.results, sum.inflight)
			}
		})
	}
}

// TestPoisonousMessage: a message that makes the logic tier fail is not tried for ever, and the others go on.
func TestPoisonousMessage(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{stateclient.ModeStream, stateclient.ModeUnary} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := run(t, startLogic(t, troubled()), func(c *Config, d *Deps) {
				patient(c, d)
				c.Relay.Mode = mode
			})
			w := r.dial(t, protocolTCP, "alice", "phone")
			for i := range 2 {
				w.say("poison", "status Unknown")
				w.want("MESSAGEACK poison ACK_RETRY backend_error 250ms")
				w.say(fmt.Sprint("u", i), "ok")
				w.want(fmt.Sprintf("MESSAGEACK u%d ACK_OK", i))
			}
			w.say("poison", "status Unknown")
			w.want("MESSAGEACK poison ACK_FAIL rejected")
			w.say("u9", "ok")
			w.want("MESSAGEACK u9 ACK_OK")
		})
	}
}

// TestRetryIsPaced: a client that resends at once, as that of the source documents does, makes four attempts a second at
// most, and spends nothing of its error budget.
func TestRetryIsPaced(t *testing.T) {
	t.Parallel()
	const attempts = 12 // more than the error budget
	calls := 0
	l := troubled()
	l.receive = func(context.Context, *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
		calls++ // one connection has one call at a time
		return nil, status.Error(codes.Aborted, "not now")
	}
	r := run(t, startLogic(t, l), func(c *Config, d *Deps) {
		patient(c, d)
		c.Relay.Mode = stateclient.ModeUnary
	})
	w := r.dial(t, protocolTCP, "alice", "phone")
	begun := time.Now()
	for range attempts {
		w.up("u1", "bob")
		w.want("MESSAGEACK u1 ACK_RETRY backend_error 250ms")
	}
	if took := time.Since(begun); took < attempts*(retryPace-time.Millisecond) {
		t.Errorf("%d attempts took only %v", attempts, took)
	}
	if calls != attempts {
		t.Errorf("%d calls for %d attempts", calls, attempts)
	}
}

// TestStreamThatLies: answers that belong to nobody, that come twice, not at all, or with the end of their stream.
func TestStreamThatLies(t *testing.T) {
	t.Parallel()
	l := troubled()
	honest := l.answer
	l.answer = func(in *statev1.UplinkItem) ([]*statev1.DownlinkItem, error) {
		out, err := honest(in)
		h, _ := codec.Scan(in.GetPayload())
		foreign := func(conn, seq uint64) []*statev1.DownlinkItem {
			return append([]*statev1.DownlinkItem{{ConnId: conn, ConnSeq: seq, Payload: out[0].Payload}}, out...)
		}
		switch string(h.UUID) {
		case "another-connection":
			return foreign(in.GetConnId()+1, in.GetConnSeq()), err
		case "another-seq":
			return foreign(in.GetConnId(), in.GetConnSeq()+7), err
		case "twice":
			return append(out, out...), err
		case "end":
			return nil, errors.New("the stream ends here")
		}
		return out, err
	}
	r := run(t, startLogic(t, l), patient)
	w := r.dial(t, protocolTCP, "alice", "phone")
	for _, c := range []struct{ uuid, want, counter, label string }{
		{"another-connection", "ACK_OK", "sluice_answers_late_total", ""},
		{"another-seq", "ACK_OK", "sluice_answers_stray_total", "foreign"},
		{"twice", "ACK_OK", "sluice_answers_late_total", ""},
		{"end", "ACK_RETRY backend_error 250ms", "sluice_uplinks_total", "retry"},
	} {
		before := r.metric(t, c.counter, c.label)
		w.say(c.uuid, "ok")
		w.want("MESSAGEACK " + c.uuid + " " + c.want)
		eventually(t, c.uuid+" is counted", func() bool { return r.metric(t, c.counter, c.label) > before })
	}
	eventually(t, "there is a stream again", r.g.relay.Ready)
	w.say("after", "ok")
	w.want("MESSAGEACK after ACK_OK")
}

// TestUnaryCallThatEnds: the backend's process ends in the middle of a call, or never answers it.
func TestUnaryCallThatEnds(t *testing.T) {
	t.Parallel()
	came, never := make(chan string, 16), make(chan struct{})
	l := troubled()
	l.receive = func(ctx context.Context, in *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
		h, _ := codec.Scan(in.GetPayload())
		came <- string(h.UUID)
		<-never
		return &statev1.ReceiveMessageResponse{}, nil
	}
	addr := startLogic(t, l)
	gateways := make([]*running, 2)
	for i, timeout := range []time.Duration{2 * time.Second, deadline} {
		gateways[i] = run(t, addr, func(c *Config, d *Deps) {
			patient(c, d)
			c.Relay.Mode, c.Relay.Timeout = stateclient.ModeUnary, timeout
		})
	}
	t.Cleanup(func() { close(never) }) // before the server's end, which waits for its handlers
	w := gateways[0].dial(t, protocolTCP, "alice", "phone")
	w.up("u1", "bob")
	<-came
	w.want("MESSAGEACK u1 ACK_RETRY timeout 250ms")
	w2 := gateways[1].dial(t, protocolTCP, "alice", "phone")
	w2.up("u2", "bob")
	<-came
	go l.server.Stop() // closes the connections at once, and then waits for the handlers
	w2.want("MESSAGEACK u2 ACK_RETRY backend_error 250ms")
	w.up("u3", "bob")
	if got := w.next(); got != "MESSAGEACK u3 ACK_RETRY timeout 250ms" && got != "MESSAGEACK u3 ACK_RETRY no_backend 250ms" {
		t.Errorf("without a backend: %q", got)
	}
}

// rawCodec lets a server answer with bytes of its own.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(b mem.BufferSlice, v any) error {
	*v.(*[]byte) = b.Materialize()
	return nil
}

// TestUnaryGarbage: an answer that is not even the message that it should be.
func TestUnaryGarbage(t *testing.T) {
	t.Parallel()
	addr := serveRaw(t, func(_ any, stream grpc.ServerStream) error {
		var in []byte
		if err := stream.RecvMsg(&in); err != nil {
			return err
		}
		return stream.SendMsg([]byte("\x0a\xff\xff\xff\xff\xff"))
	})
	r := run(t, addr, func(c *Config, d *Deps) {
		patient(c, d)
		c.Relay.Mode, c.Relay.UnaryMethod = stateclient.ModeUnary, "/their.Logic/Handle"
	})
	w := r.dial(t, protocolTCP, "alice", "phone")
	w.up("u1", "bob")
	w.want("MESSAGEACK u1 ACK_RETRY backend_error 250ms")
	if n := r.metric(t, "sluice_answers_stray_total", "garbage"); n < 1 {
		t.Errorf("%v answers are counted as garbage", n)
	}
}

// TestTraceContext: the traceparent of an upgrade goes with everything that the logic tier is told.
func TestTraceContext(t *testing.T) {
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, mode := range []string{stateclient.ModeStream, stateclient.ModeUnary} {
		t.Run(mode, func(t *testing.T) {
			got := make(chan string, 64)
			l := troubled()
			l.connect = func(ctx context.Context, in *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
				got <- "connect " + in.GetTraceParent()
				return decide(ctx, in)
			}
			l.receive = func(ctx context.Context, in *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
				md, _ := metadata.FromIncomingContext(ctx)
				got <- "frame " + strings.Join(md.Get("traceparent"), ",")
				payload, err := deed(in.GetPayload())
				return &statev1.ReceiveMessageResponse{ResponsePayload: payload}, err
			}
			honest := l.answer
			l.answer = func(in *statev1.UplinkItem) ([]*statev1.DownlinkItem, error) {
				got <- "frame " + in.GetTraceParent()
				return honest(in)
			}
			r := run(t, startLogic(t, l), func(c *Config, d *Deps) {
				asksBackend(c, d)
				c.Relay.Mode = mode
			})
			w := r.connect(t, protocolWS)
			request := strings.Replace(string(upgradeRequest(codec.WebSocket, []string{"bearer=alice"})), "Host: gw\r\n", "Host: gw\r\ntraceparent: "+trace+"\r\n", 1)
			w.send([]byte(request))
			if status := w.http(); status != "101" {
				t.Fatalf("the upgrade was answered %s", status)
			}
			w.say("u1", "ok")
			w.want("MESSAGEACK u1 ACK_OK")
			seen := map[string]bool{}
			for !seen["connect "+trace] || !seen["frame "+trace] {
				select {
				case one := <-got:
					seen[one] = true
				case <-time.After(deadline):
					t.Fatalf("seen: %v", seen)
				}
			}
			if len(seen) != 2 {
				t.Errorf("seen: %v", seen)
			}
		})
	}
}
