package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/test/cluster"
)

// Who is who among the 1,000 users of TestSendAddsUp.
const (
	sendOnline  = 600 // on two gateways
	sendOffline = 300
	sendDead    = 50 // on a gateway that is killed
	sendSlow    = 40 // do not read, and their outboxes are full
	sendKicked  = 10
)

// An outbox that sendFills commands of sendFill bytes do not fill, even if the kernel has taken nothing, and that is still
// more than half full, so that a command of sendNews bytes finds no room, if the kernel has taken as much as its small
// buffers hold.
const (
	sendOutbox = 65536
	sendFill   = 4000
	sendFills  = 16
	sendNews   = 32000
	sendKernel = 8192 // doubled by the kernel, on either side
)

var sendLimits = append([]string{
	"limits.frame.bytes=32768", fmt.Sprint("backpressure.outbox_bytes=", sendOutbox), fmt.Sprint("backpressure.sndbuf=", sendKernel), "backpressure.write_timeout=10m",
	"limits.accept.per_second=0", "routes.lookup_timeout=20s", "internal.push_timeout=10s", "relay.timeout=20s",
	"heartbeat.interval=10m", "heartbeat.idle_timeout=30m",
}, limitsUp...)

func down(id string, size int) []byte {
	return codec.AppendCommand(nil, clientv1.CommandType_MESSAGEDOWN, 0, &clientv1.MessageDown{MsgId: id, Body: make([]byte, size)})
}

// sender calls a gateway's internal port.
type sender struct {
	t *testing.T
	gatewayv1.GatewayClient
}

func dialInternal(t *testing.T, g *cluster.Gateway) sender {
	t.Helper()
	conn, err := grpc.NewClient(g.Internal, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return sender{t, gatewayv1.NewGatewayClient(conn)}
}

// send is one Send to every device of some users; it returns the result of each.
func (s sender) send(payload []byte, uids ...string) map[string]gatewayv1.Result {
	s.t.Helper()
	req := &gatewayv1.SendRequest{Payload: payload}
	for _, uid := range uids {
		req.Recipients = append(req.Recipients, &gatewayv1.Recipient{Uid: uid})
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	res, err := s.Send(ctx, req)
	if err != nil {
		s.t.Fatalf("Send: %v", err)
	}
	results := make(map[string]gatewayv1.Result, len(uids))
	for _, r := range res.GetResults() {
		if _, twice := results[r.GetUid()]; twice {
			s.t.Errorf("two results for %s, who has one device", r.GetUid())
		}
		results[r.GetUid()] = r.GetResult()
	}
	if len(results) != len(uids) {
		s.t.Errorf("%d results for %d users", len(results), len(uids))
	}
	return results
}

// smallBuffer is a dialer whose connections take little that is not read. It has to be set before the window is announced.
func smallBuffer() *net.Dialer {
	return &net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, sendKernel)
		}), err)
	}}
}

// crowd logs many users in, each on one of the gateways.
func crowd(t *testing.T, d *net.Dialer, prefix string, n int, gateways ...*cluster.Gateway) (uids []string, clients []*rawClient) {
	t.Helper()
	for i := range n {
		uids = append(uids, fmt.Sprint(prefix, i))
		clients = append(clients, dialRawWith(t, d, gateways[i%len(gateways)], uids[i]))
	}
	return uids, clients
}

// received says how many commands with this id a client has got, up to the end of its connection (io.EOF for a FIN and
// for an RST) or the answer to a heartbeat.
func received(c *rawClient, id string) (n int, err error) {
	for {
		cmd, err := c.read(30 * time.Second)
		if errors.Is(err, syscall.ECONNRESET) {
			err = io.EOF
		}
		if err != nil {
			return n, err
		}
		switch cmd.Type {
		case clientv1.CommandType_HEARTBEAT:
			return n, nil
		case clientv1.CommandType_MESSAGEDOWN:
			m := &clientv1.MessageDown{}
			if err := m.UnmarshalVT(cmd.Data); err != nil {
				return n, err
			}
			if m.MsgId == id {
				n++
			}
		}
	}
}

// kick ends the connections of a user on one gateway, through its admin port.
func kick(t *testing.T, g *cluster.Gateway, uid string) {
	t.Helper()
	resp, err := http.Post("http://"+g.Admin+"/api/v1/kick", "application/json", strings.NewReader(fmt.Sprintf(`{"uid": %q}`, uid)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), `"kicked":1`) {
		t.Fatalf("kick %s: %s %v", uid, body, err)
	}
}

// haveOnce asserts that clients whose connections go on have got one command with this id.
func haveOnce(t *testing.T, clients []*rawClient, id string) {
	t.Helper()
	var work sync.WaitGroup
	for i, c := range clients {
		work.Go(func() {
			// Its answer comes behind everything that was sent before.
			c.write(codec.AppendCommand(nil, clientv1.CommandType_HEARTBEAT, 0, nil))
			if n, err := received(c, id); n != 1 || err != nil {
				t.Errorf("client %d, online, got it %d times: %v", i, n, err)
			}
		})
	}
	work.Wait()
}

// haveNot asserts that clients have got no command with this id, and that their connections were closed.
func haveNot(t *testing.T, clients []*rawClient, id string) {
	t.Helper()
	var work sync.WaitGroup
	for i, c := range clients {
		work.Go(func() {
			if n, err := received(c, id); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("client %d, slow or kicked, got it %d times: %v", i, n, err)
			}
		})
	}
	work.Wait()
}

// TestSendAddsUp: one Send to 1,000 users. 600 are online on two gateways, 300 offline, 50 routed to a gateway that was
// killed a moment ago, 40 do not read and have a full outbox, 10 were kicked a moment ago. There is one result for each,
// and what it says is what happened.
func TestSendAddsUp(t *testing.T) {
	_, backend := startLogicTier(t, func() time.Duration { return 0 })
	redis := testenv.Redis(t).Addr
	var gateways []*cluster.Gateway
	for range 3 {
		gateways = append(gateways, cluster.NewGateway(t, redis, backend, sendLimits...))
	}
	for _, g := range gateways {
		g.WaitReady()
	}
	living, doomed := gateways[:2], gateways[2]
	online, readers := crowd(t, &net.Dialer{}, "online", sendOnline, living...)
	dead, _ := crowd(t, &net.Dialer{}, "dead", sendDead, doomed)
	slow, sleepers := crowd(t, smallBuffer(), "slow", sendSlow, living...)
	kicked, victims := crowd(t, &net.Dialer{}, "kicked", sendKicked, living...)
	var offline []string
	for i := range sendOffline {
		offline = append(offline, fmt.Sprint("offline", i))
	}
	calls := []sender{dialInternal(t, living[0]), dialInternal(t, living[1])}
	for range sendFills {
		for uid, result := range calls[0].send(down("fill", sendFill-100), slow...) {
			if result != gatewayv1.Result_RESULT_WRITTEN && result != gatewayv1.Result_RESULT_QUEUED {
				t.Fatalf("%s: %v", uid, result)
			}
		}
	}

	for i, uid := range kicked {
		kick(t, living[i%2], uid)
	}
	doomed.Kill()
	everybody := append(append(append(append(append([]string(nil), online...), offline...), dead...), slow...), kicked...)
	results := calls[1].send(down("news", sendNews), everybody...)

	count := func(who string, uids []string, allowed ...gatewayv1.Result) {
		got := make(map[gatewayv1.Result]int)
		for _, uid := range uids {
			got[results[uid]]++
		}
		rest := len(uids)
		for _, a := range allowed {
			rest -= got[a]
		}
		if rest != 0 {
			t.Errorf("%s: %v, allowed are %v", who, got, allowed)
		}
		t.Logf("%d %s: %v", len(uids), who, got)
	}
	count("online", online, gatewayv1.Result_RESULT_WRITTEN, gatewayv1.Result_RESULT_QUEUED)
	count("offline", offline, gatewayv1.Result_RESULT_OFFLINE)
	// Within its lease a dead gateway's answer is missing; after it, nobody is there.
	count("dead", dead, gatewayv1.Result_RESULT_UNKNOWN, gatewayv1.Result_RESULT_OFFLINE)
	count("slow", slow, gatewayv1.Result_RESULT_DROPPED_SLOW)
	// Their routes may be released already, or not yet.
	count("kicked", kicked, gatewayv1.Result_RESULT_STALE_ROUTE, gatewayv1.Result_RESULT_OFFLINE)

	// And it is true: whoever was said to have it has it once, whoever was not has not.
	haveOnce(t, readers, "news")
	haveNot(t, append(append([]*rawClient(nil), sleepers...), victims...), "news")
	// Nobody but the dead, the slow and the kicked is affected: the next one reaches the same 600.
	for uid, result := range calls[0].send(down("more", 10), online...) {
		if result != gatewayv1.Result_RESULT_WRITTEN && result != gatewayv1.Result_RESULT_QUEUED {
			t.Errorf("afterwards %s: %v", uid, result)
		}
	}
}
