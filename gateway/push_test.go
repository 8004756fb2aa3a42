package gateway

import (
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	plaintext "google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
)

const (
	reasonSlow            = reason.SlowConsumer
	reasonAuthUnavailable = reason.AuthUnavailable
)

// calls is a client of the internal port.
func (r *running) calls(t testing.TB) gatewayv1.GatewayClient {
	t.Helper()
	conn, err := grpc.NewClient(r.g.Addr("internal"), grpc.WithTransportCredentials(plaintext.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return gatewayv1.NewGatewayClient(conn)
}

// target is the connection of a user, as the route table gives it.
func (r *running) target(t testing.TB, uid string) *gatewayv1.Target {
	t.Helper()
	found, err := r.table.Find(t.Context(), []string{uid})
	if err != nil || len(found[uid]) != 1 {
		t.Fatalf("routes of %s: %v, %v", uid, found[uid], err)
	}
	at := found[uid][0]
	return &gatewayv1.Target{Incarnation: at.Incarnation, ConnId: at.ConnID, Uid: at.UID, DeviceId: at.DeviceID, Epoch: at.Epoch}
}

// push calls Push without the network.
func (r *running) push(t testing.TB, payload []byte, targets ...*gatewayv1.Target) (results []string) {
	t.Helper()
	res, err := (&internal{g: r.g}).Push(t.Context(), &gatewayv1.PushRequest{Items: []*gatewayv1.PushItem{{Payload: payload, Targets: targets}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range res.GetResults() {
		results = append(results, got.String())
	}
	return results
}

// message is a MESSAGEDOWN whose number the client sees.
func message(n, size int) []byte {
	return codec.AppendCommand(nil, clientv1.CommandType_MESSAGEDOWN, 0, &clientv1.MessageDown{MsgId: fmt.Sprint(n), Body: make([]byte, size)})
}

func TestPushAndKick(t *testing.T) {
	r := run(t, startLogic(t, &logic{}), patient)
	ws, tcp := r.dial(t, protocolWS, "alice", "phone"), r.dial(t, protocolTCP, "bob", "phone")
	alice, bob := r.target(t, "alice"), r.target(t, "bob")
	client := r.calls(t)

	wrong := func(change func(x *gatewayv1.Target)) *gatewayv1.Target {
		x := &gatewayv1.Target{Incarnation: alice.Incarnation, ConnId: alice.ConnId, Uid: alice.Uid, DeviceId: alice.DeviceId, Epoch: alice.Epoch}
		change(x)
		return x
	}
	res, err := client.Push(t.Context(), &gatewayv1.PushRequest{Items: []*gatewayv1.PushItem{
		{Payload: message(1, 10), Targets: []*gatewayv1.Target{alice, bob,
			wrong(func(x *gatewayv1.Target) { x.Incarnation = "gw-other" }),
			wrong(func(x *gatewayv1.Target) { x.Epoch++ }),
			wrong(func(x *gatewayv1.Target) { x.Uid = "bob" }),
			wrong(func(x *gatewayv1.Target) { x.DeviceId = "tablet" }),
			wrong(func(x *gatewayv1.Target) { x.ConnId += 1 << 32 }),
			wrong(func(x *gatewayv1.Target) { x.ConnId = 1<<32 | 999999 }),
		}},
		{Payload: message(2, 10), Targets: []*gatewayv1.Target{alice}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	w, s := gatewayv1.Result_RESULT_WRITTEN, gatewayv1.Result_RESULT_STALE_ROUTE
	if got, want := fmt.Sprint(res.GetResults()), fmt.Sprint([]gatewayv1.Result{w, w, s, s, s, s, s, s, w}); got != want {
		t.Errorf("results %s, want %s", got, want)
	}
	ws.want("MESSAGEDOWN 1", "MESSAGEDOWN 2")
	tcp.want("MESSAGEDOWN 1")

	kick, err := client.Kick(t.Context(), &gatewayv1.KickRequest{Targets: []*gatewayv1.Target{wrong(func(x *gatewayv1.Target) { x.Epoch-- }), bob}, ByDevice: "tablet"})
	if err != nil || fmt.Sprint(kick.GetResults()) != fmt.Sprint([]gatewayv1.Result{s, w}) {
		t.Errorf("kick: %v %v", kick.GetResults(), err)
	}
	tcp.want("KICK kicked tablet 4500", "EOF")
	if _, err := client.Kick(t.Context(), &gatewayv1.KickRequest{Targets: []*gatewayv1.Target{alice}, Reason: "because"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a reason that is none: %v", err)
	}
	if _, err := client.Push(t.Context(), &gatewayv1.PushRequest{Items: []*gatewayv1.PushItem{{Payload: make([]byte, 70000), Targets: []*gatewayv1.Target{alice}}}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a payload over the frame limit: %v", err)
	}
	ws.command(clientv1.CommandType_HEARTBEAT, nil)
	ws.want("HEARTBEAT")
}

func TestInternalToken(t *testing.T) {
	r := run(t, startLogic(t, &logic{}), func(c *Config, _ *Deps) { c.Internal.Token = "between-us" })
	client := r.calls(t)
	if _, err := client.Push(t.Context(), &gatewayv1.PushRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer between-us")
	if _, err := client.Push(ctx, &gatewayv1.PushRequest{}); err != nil {
		t.Errorf("with the token: %v", err)
	}
	if _, err := client.Send(ctx, &gatewayv1.SendRequest{Payload: message(1, 1)}); err != nil {
		t.Errorf("Send: %v", err)
	}
}

// TestDisplacedElsewhere: a login on one gateway ends the connection that another one holds for the same device.
func TestDisplacedElsewhere(t *testing.T) {
	backend := startLogic(t, &logic{})
	first := run(t, backend, patient)
	second := run(t, backend, func(c *Config, d *Deps) {
		c.Internal.Token = ""
		d.Routes = first.table.open
	})
	was := first.dial(t, protocolTCP, "alice", "phone")
	now := second.dial(t, protocolTCP, "alice", "phone")
	was.want("KICK displaced phone 4501", "EOF")
	now.up("u1", "bob")
	now.want("MESSAGEACK u1 ACK_OK")
	eventually(t, "only the new route is left", func() bool { return first.table.size() == 1 })
}

// TestPushDuringLogin: the route table shows a route before the gateway has its answer. A push then waits for the login,
// and is never called stale, which would remove the route; nothing is written before the answer to the login.
func TestPushDuringLogin(t *testing.T) {
	r := run(t, startLogic(t, &logic{}), patient)
	hold := make(chan struct{})
	r.table.mu.Lock()
	r.table.hold = hold
	r.table.mu.Unlock()
	w := r.connect(t, protocolWS)
	w.send(upgradeRequest(codec.WebSocket, []string{"bearer=alice", "device_id=phone"}))
	eventually(t, "the route is written", func() bool { return r.table.size() == 1 })
	target := r.target(t, "alice")
	if got := r.push(t, message(1, 10), target)[0]; got != "RESULT_UNKNOWN" {
		t.Errorf("a push to a login that is not answered is %s", got)
	}
	if got := r.push(t, message(1, 10), &gatewayv1.Target{Incarnation: target.Incarnation, ConnId: target.ConnId, Uid: "bob", DeviceId: "phone"})[0]; got != "RESULT_STALE_ROUTE" {
		t.Errorf("a push to somebody else is %s", got)
	}
	results := make(chan string, 1)
	go func() {
		for {
			if got := r.push(t, message(2, 10), target)[0]; got != "RESULT_UNKNOWN" {
				results <- got
				return
			}
		}
	}()
	close(hold)
	if got := <-results; got != "RESULT_WRITTEN" {
		t.Errorf("a push that waited is %s", got)
	}
	if status := w.http(); status != "101" {
		t.Errorf("the upgrade was answered %s", status)
	}
	w.want("MESSAGEDOWN 2")
}

// TestDisplacedDuringLogin: whose place was taken before his login was answered is told so.
func TestDisplacedDuringLogin(t *testing.T) {
	r := run(t, startLogic(t, &logic{}), patient)
	hold := make(chan struct{})
	r.table.mu.Lock()
	r.table.hold = hold
	r.table.mu.Unlock()
	w := r.connect(t, protocolTCP)
	w.command(clientv1.CommandType_LOGIN, loginAs("alice"))
	eventually(t, "the route is written", func() bool { return r.table.size() == 1 })
	if !r.g.displace(r.target(t, "alice"), reason.Displaced, "tablet", "s2") {
		t.Error("nobody was displaced")
	}
	close(hold)
	w.want("ERROR route_conflict 4008", "EOF")
	eventually(t, "its route is released", func() bool { return r.table.size() == 0 })
}
