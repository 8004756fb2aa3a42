package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/internal/testenv/certs"
	"github.com/sluice-im/sluice/stateclient/routes"
)

// to names recipients: "uid" or "uid/device".
func to(names ...string) (list []*gatewayv1.Recipient) {
	for _, n := range names {
		uid, device, _ := strings.Cut(n, "/")
		list = append(list, &gatewayv1.Recipient{Uid: uid, DeviceId: device})
	}
	return list
}

// outcome is a result as text, sorted, since the devices of one user have no order.
func outcome(t testing.TB, res *gatewayv1.SendResponse, err error) []string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, r := range res.GetResults() {
		list = append(list, fmt.Sprintf("%s/%s %s", r.GetUid(), r.GetDeviceId(), pushResultNames[r.GetResult()]))
	}
	slices.Sort(list)
	return list
}

func sameResults(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("results\n%q, want\n%q", got, want)
	}
}

// pair is two gateways on one route table.
func pair(t *testing.T, change func(c *Config)) (first, second *running) {
	backend := startLogic(t, &logic{})
	adapt := func(c *Config, d *Deps) {
		patient(c, d)
		c.Internal.PushTimeout = deadline
		if change != nil {
			change(c)
		}
	}
	first = run(t, backend, adapt)
	second = run(t, backend, func(c *Config, d *Deps) {
		adapt(c, d)
		d.Routes = first.table.open
	})
	return first, second
}

// plant puts a route into the table that no connection stands for.
func (t *fakeRoutes) plant(r routes.Route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[r.UID+"/"+r.DeviceID] = r
}

func TestSend(t *testing.T) {
	first, second := pair(t, nil)
	phone, tablet := first.dial(t, protocolTCP, "alice", "phone"), second.dial(t, protocolWS, "alice", "tablet")
	bob := second.dial(t, protocolTCP, "bob", "phone")
	at := func(uid string, g *running, addr string) routes.Route {
		return routes.Route{UID: uid, DeviceID: "phone", Incarnation: g.g.incarnation, Addr: addr, ConnID: 1<<32 | 7, Epoch: 5}
	}
	first.table.plant(at("gone.here", first, first.g.advertise))
	first.table.plant(at("gone.there", second, second.g.advertise))
	was := at("before", first, second.g.advertise)
	was.Incarnation = "gw-before"
	first.table.plant(was)
	dead := at("dead", first, "127.0.0.1:1")
	dead.Incarnation = "gw-dead"
	first.table.plant(dead)

	client := first.calls(t)
	send := func(payload []byte, names ...string) []string {
		res, err := client.Send(t.Context(), &gatewayv1.SendRequest{Payload: payload, Recipients: to(names...)})
		return outcome(t, res, err)
	}
	sameResults(t, send(message(1, 10)))
	sameResults(t, send(message(1, 10), "alice", "bob", "carol", "b b", "alice/b b", "", "gone.here", "gone.there", "before", "dead"),
		"/ invalid", "alice/b b invalid", "alice/phone written", "alice/tablet written", "b b/ invalid", "before/phone stale_route",
		"bob/phone written", "carol/ offline", "dead/phone unknown", "gone.here/phone stale_route", "gone.there/phone stale_route")
	for _, w := range []*wire{phone, tablet, bob} {
		w.want("MESSAGEDOWN 1")
	}
	for _, uid := range []string{"gone.here", "gone.there", "before"} {
		if found, _ := first.table.Find(t.Context(), []string{uid}); len(found) != 0 {
			t.Errorf("the route of %s was not removed", uid)
		}
	}
	if found, _ := first.table.Find(t.Context(), []string{"dead"}); len(found) != 1 {
		t.Error("the route of a gateway that does not answer was removed")
	}
	sameResults(t, send(message(2, 10), "alice/tablet", "bob/laptop", "carol/phone"),
		"alice/tablet written", "bob/laptop offline", "carol/phone offline")
	tablet.want("MESSAGEDOWN 2")

	for what, payload := range map[string][]byte{"too large": message(1, 70000), "empty": nil, "no Command": []byte("GET / HTTP/1.1")} {
		_, err := client.Send(t.Context(), &gatewayv1.SendRequest{Payload: payload, Recipients: to("alice")})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
		_, err = client.Broadcast(t.Context(), &gatewayv1.BroadcastRequest{Payload: payload})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("broadcast of what is %s: %v", what, err)
		}
	}
	first.table.mu.Lock()
	first.table.down = true
	first.table.mu.Unlock()
	sameResults(t, send(message(3, 10), "alice", "carol/phone", "b b"), "alice/ unknown", "b b/ invalid", "carol/phone unknown")
	first.table.mu.Lock()
	first.table.down = false
	first.table.mu.Unlock()
}

// TestSendToMany: 100,000 users in one call, of whom two are online, and calls whose answer would have no room.
func TestSendToMany(t *testing.T) {
	first, second := pair(t, nil)
	a, b := first.dial(t, protocolTCP, "alice", "phone"), second.dial(t, protocolTCP, "bob", "phone")
	var names []string
	for i := range 99_998 {
		names = append(names, fmt.Sprintf("user%05d", i))
	}
	names = append(names, "bob")
	names = slices.Insert(names, 50_000, "alice")
	client := first.calls(t)
	res, err := client.Send(t.Context(), &gatewayv1.SendRequest{Payload: message(1, 10), Recipients: to(names...)})
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[gatewayv1.Result]int)
	for i, r := range res.GetResults() {
		count[r.GetResult()]++
		if r.GetUid() != names[i] {
			t.Fatalf("result %d is of %s, not of %s", i, r.GetUid(), names[i])
		}
	}
	if count[gatewayv1.Result_RESULT_OFFLINE] != 99_998 || count[gatewayv1.Result_RESULT_WRITTEN] != 2 || len(count) != 2 {
		t.Errorf("results: %v", count)
	}
	a.want("MESSAGEDOWN 1")
	b.want("MESSAGEDOWN 1")
	for i := range names {
		names[i] += "-and-a-name-that-is-far-too-long"
	}
	_, err = client.Send(t.Context(), &gatewayv1.SendRequest{Payload: message(1, 10), Recipients: to(names...)})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("an answer of more than 4 MiB: %v", err)
	}
	// As many as fit, and then the devices do not: those are not sent to, and not called offline.
	c := sending{g: first.g}
	c.room.Store(20)
	list := make([]addressed, 1)
	list[0].Recipient = to("alice")[0]
	c.payload, c.local.payload = message(2, 10), message(2, 10)
	if due := c.lookUp(t.Context(), list, func(*addressed) bool { return true }); len(due) != 0 {
		t.Errorf("%d pushes without room for their results", len(due))
	}
	if got := c.results(list); len(got) != 1 || got[0].GetResult() != gatewayv1.Result_RESULT_UNKNOWN {
		t.Errorf("results without room: %v", got)
	}
}

// moving is a route table in which a device comes back elsewhere at the moment at which its old route is removed.
type moving struct {
	*fakeRoutes
	onRemove func()
}

func (m *moving) Remove(ctx context.Context, stale []routes.Route) error {
	err := m.fakeRoutes.Remove(ctx, stale)
	m.onRemove()
	return err
}

func TestSendFindsWhoCameBackElsewhere(t *testing.T) {
	first, second := pair(t, nil)
	w := second.dial(t, protocolTCP, "alice", "phone")
	found, _ := first.table.Find(t.Context(), []string{"alice"})
	now := found["alice"][0]
	old := now
	old.Incarnation, old.Addr, old.Epoch = first.g.incarnation, first.g.advertise, now.Epoch-1
	first.table.plant(old)
	first.g.routes.table = &moving{first.table, func() { first.table.plant(now) }}
	res, err := (&internal{g: first.g}).Send(t.Context(), &gatewayv1.SendRequest{Payload: message(1, 10), Recipients: to("alice")})
	sameResults(t, outcome(t, res, err), "alice/phone written")
	w.want("MESSAGEDOWN 1")
}

// TestSendToASilentGateway: a gateway that takes connections and answers nothing costs a few timeouts, not one a chunk.
func TestSendToASilentGateway(t *testing.T) {
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = deaf.Close() }()
	r := run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) { c.Internal.PushTimeout = 10 * time.Millisecond })
	var names []string
	for i := range 20 * sendChunk {
		names = append(names, fmt.Sprint("user", i))
		if i%sendChunk == 0 {
			r.table.plant(routes.Route{UID: names[i], DeviceID: "phone", Incarnation: "gw-deaf", Addr: deaf.Addr().String(), ConnID: 1, Epoch: 1})
		}
	}
	res, err := (&internal{g: r.g}).Send(t.Context(), &gatewayv1.SendRequest{Payload: message(1, 10), Recipients: to(names...)})
	if err != nil {
		t.Fatal(err)
	}
	unknown := 0
	for _, got := range res.GetResults() {
		if got.GetResult() == gatewayv1.Result_RESULT_UNKNOWN {
			unknown++
		}
	}
	if unknown != 20 || len(res.GetResults()) != len(names) {
		t.Errorf("%d of %d results are unknown", unknown, len(res.GetResults()))
	}
	if failed := r.g.counters.passed[forwardFailed].Load(); failed > silentMax+sendAtOnce {
		t.Errorf("it was asked %d times", failed)
	}
}

func TestBroadcast(t *testing.T) {
	r := run(t, startLogic(t, &logic{}), patient)
	var wires []*wire
	for i := range 6 {
		wires = append(wires, r.dial(t, []string{protocolTCP, protocolWS}[i%2], fmt.Sprint("user", i), "phone"))
	}
	r.connect(t, protocolTCP) // not logged in: gets nothing
	client := r.calls(t)
	for n, pace := range []uint32{0, 100} {
		res, err := client.Broadcast(t.Context(), &gatewayv1.BroadcastRequest{Payload: message(n, 10), ConnectionsPerSecond: pace})
		if err != nil || res.GetWritten() != 6 || res.GetQueued()+res.GetDropped() != 0 {
			t.Errorf("broadcast: %v %v", res, err)
		}
		for _, w := range wires {
			w.want(fmt.Sprint("MESSAGEDOWN ", n))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := client.Broadcast(ctx, &gatewayv1.BroadcastRequest{Payload: message(3, 10), ConnectionsPerSecond: 1}); status.Code(err) != codes.Canceled {
		t.Errorf("a broadcast that nobody waits for any more: %v", err)
	}
}

// TestInternalMTLS: with certificates and a token on the internal port, gateways still reach each other, and nobody
// without them reaches either.
func TestInternalMTLS(t *testing.T) {
	files := issue(t, certs.New(t), "gateway")
	first, second := pair(t, func(c *Config) { c.Internal.TLS, c.Internal.Token = files, "between-us" })
	w := second.dial(t, protocolTCP, "alice", "phone")
	if _, err := first.calls(t).Send(t.Context(), &gatewayv1.SendRequest{Payload: message(1, 1)}); status.Code(err) != codes.Unavailable {
		t.Errorf("without TLS: %v", err)
	}
	config, err := clientTLS(files)
	if err != nil {
		t.Fatal(err)
	}
	call := func(config *tls.Config, token string) (*gatewayv1.SendResponse, error) {
		conn, err := grpc.NewClient(first.g.Addr("internal"), grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
		return gatewayv1.NewGatewayClient(conn).Send(ctx, &gatewayv1.SendRequest{Payload: message(1, 1), Recipients: to("alice")})
	}
	if _, err := call(&tls.Config{RootCAs: config.RootCAs}, "between-us"); status.Code(err) != codes.Unavailable {
		t.Errorf("without a certificate: %v", err)
	}
	if _, err := call(config, "guessed"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("with a wrong token: %v", err)
	}
	res, err := call(config, "between-us")
	sameResults(t, outcome(t, res, err), "alice/phone written")
	w.want("MESSAGEDOWN 1")
}
