package gateway

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateclient/routes"
)

// realPair is two gateways on one real Redis.
func realPair(t *testing.T, l *logic, change func(c *Config)) (first, second *running) {
	t.Helper()
	redis, backend := testenv.Redis(t), startLogic(t, l)
	adapt := func(c *Config, d *Deps) {
		patient(c, d)
		d.Routes = nil
		c.Routes.Redis.Addrs = []string{redis.Addr}
		c.Routes.LookupTimeout, c.Internal.PushTimeout = deadline, deadline
		if change != nil {
			change(c)
		}
	}
	first, second = run(t, backend, adapt), run(t, backend, adapt)
	for _, r := range []*running{first, second} {
		eventually(t, "the gateway is ready", func() bool { return len(r.g.Ready()) == 0 })
	}
	return first, second
}

// devices are the routes of a user.
func (r *running) devices(t testing.TB, uid string) map[string]routes.Route {
	t.Helper()
	found, err := r.g.routes.table.Find(t.Context(), []string{uid})
	if err != nil {
		t.Fatal(err)
	}
	list := make(map[string]routes.Route)
	for _, at := range found[uid] {
		list[at.DeviceID] = at
	}
	return list
}

func TestPolicyMulti(t *testing.T) {
	first, second := realPair(t, &logic{}, func(c *Config) { c.Routes.DevicesMax = 2 })
	phone := first.dial(t, protocolTCP, "alice", "phone")
	tablet := second.dial(t, protocolWS, "alice", "tablet")
	// One connection a device, wherever it is; as many devices as are allowed, and then the oldest goes.
	again := second.dial(t, protocolTCP, "alice", "phone")
	phone.want("KICK displaced phone 4501", "EOF")
	laptop := first.dial(t, protocolTCP, "alice", "laptop")
	tablet.want("KICK displaced laptop 4501", "CLOSE 4501 displaced", "EOF")
	if list := second.devices(t, "alice"); len(list) != 2 || list["phone"].Incarnation != second.g.incarnation || list["laptop"].Incarnation != first.g.incarnation {
		t.Errorf("routes: %v", list)
	}
	for _, w := range []*wire{again, laptop} {
		w.command(clientv1.CommandType_HEARTBEAT, nil)
		w.want("HEARTBEAT")
	}
}

func TestPolicySingle(t *testing.T) {
	first, second := realPair(t, &logic{}, func(c *Config) { c.Routes.Policy = policySingle })
	phone := first.dial(t, protocolTCP, "alice", "phone")
	bob := first.dial(t, protocolTCP, "bob", "phone")
	tablet := second.dial(t, protocolTCP, "alice", "tablet")
	phone.want("KICK displaced tablet 4501", "EOF")
	laptop := second.dial(t, protocolWS, "alice", "laptop")
	tablet.want("KICK displaced laptop 4501", "EOF")
	res, err := first.calls(t).Send(t.Context(), &gatewayv1.SendRequest{Payload: message(1, 10), Recipients: to("alice", "bob")})
	sameResults(t, outcome(t, res, err), "alice/laptop written", "bob/phone written")
	laptop.want("MESSAGEDOWN 1")
	bob.want("MESSAGEDOWN 1")
}

// TestSuperseded: the same run of a client logs in again elsewhere while a message of it is in flight. It is no kick: the
// answer still comes on the old connection, which then ends.
func TestSuperseded(t *testing.T) {
	armed, release := atomic.Bool{}, make(chan struct{})
	l := &logic{delay: func() time.Duration {
		if armed.CompareAndSwap(true, false) {
			<-release
		}
		return 0
	}}
	first, second := realPair(t, l, nil)
	login := func(r *running, session string) *wire {
		w := r.connect(t, protocolTCP)
		w.command(clientv1.CommandType_LOGIN, &clientv1.Login{Token: "alice", DeviceId: "phone", SessionId: session})
		if got := w.next(); !strings.HasPrefix(got, "LOGIN_REPLY alice phone") {
			t.Fatalf("the login was answered %q", got)
		}
		return w
	}
	was := login(first, "run-1")
	eventually(t, "it is announced", func() bool { return l.count(statev1.UplinkKind_UPLINK_KIND_CONNECT) == 1 })
	armed.Store(true)
	was.up("u1", "bob")
	eventually(t, "the message is in flight", func() bool { return !armed.Load() })
	login(second, "run-1")
	eventually(t, "the old connection is told to leave", func() bool { return first.g.gauges.conns[1][leaving].Load() == 1 })
	close(release)
	was.want("MESSAGEACK u1 ACK_OK", "ERROR superseded 4009", "EOF")
}

// TestSupersededWithoutAnswer: a logic tier that does not answer holds the old connection up for a second at most.
func TestSupersededWithoutAnswer(t *testing.T) {
	t.Parallel()
	silent := make(chan struct{})
	t.Cleanup(func() { close(silent) })
	r := run(t, startLogic(t, &logic{delay: func() time.Duration {
		<-silent
		return 0
	}}), patient)
	login := func() *wire {
		w := r.connect(t, protocolTCP)
		w.command(clientv1.CommandType_LOGIN, &clientv1.Login{Token: "alice", DeviceId: "phone", SessionId: "run-1"})
		w.next()
		return w
	}
	was := login()
	was.up("u1", "bob")
	eventually(t, "the message is in flight", func() bool { return r.g.books().received == 1 })
	login()
	was.want("ERROR superseded 4009", "EOF")
	eventually(t, "it is counted as lost", func() bool { return r.g.books().results[resultLost] == 1 })
}

// TestLoginStorm: a hundred logins of one user at once, on two gateways, where one is allowed. One of them is left, the
// table knows it, and everybody else was told why he is not it.
func TestLoginStorm(t *testing.T) {
	const logins = 100
	first, second := realPair(t, &logic{}, func(c *Config) {
		c.Routes.Policy = policySingle
		c.Limits.Accept = Accept{}
	})
	wires := make([]*wire, logins)
	for i := range wires {
		wires[i] = []*running{first, second}[i%2].connect(t, protocolTCP)
	}
	var storm sync.WaitGroup
	start := make(chan struct{})
	for i, w := range wires {
		storm.Go(func() {
			<-start
			framed := w.frame(clientv1.CommandType_LOGIN, &clientv1.Login{Token: "alice", DeviceId: fmt.Sprint("device", i), SessionId: fmt.Sprint("s", i)})
			_, _ = w.conn.Write(framed)
		})
	}
	close(start)
	storm.Wait()
	open := func() int64 { return first.g.gauges.open() + second.g.gauges.open() }
	eventually(t, "one connection is left", func() bool { return open() == 1 && first.g.gauges.live()+second.g.gauges.live() == 1 })
	var owner routes.Route
	eventually(t, "one route is left", func() bool {
		list := first.devices(t, "alice")
		for _, owner = range list {
		}
		return len(list) == 1
	})
	for i, w := range wires {
		device := fmt.Sprint("device", i)
		last, came := "", w.next()
		for came != "EOF" && came != "RST" && device != owner.DeviceID {
			last, came = came, w.next()
		}
		if device == owner.DeviceID {
			if came != "LOGIN_REPLY alice "+device+" 16" {
				t.Errorf("the owner was told %q", came)
			}
			w.command(clientv1.CommandType_HEARTBEAT, nil)
			w.want("HEARTBEAT")
			continue
		}
		if !strings.HasPrefix(last, "KICK displaced") && last != "ERROR route_conflict 4008" {
			t.Errorf("%s ended with %q", device, last)
		}
	}
	res, err := second.calls(t).Send(t.Context(), &gatewayv1.SendRequest{Payload: message(1, 10), Recipients: to("alice")})
	sameResults(t, outcome(t, res, err), "alice/"+owner.DeviceID+" written")
}

// TestKickIsTriedAgain: the gateway that holds the displaced connection is not well at first.
func TestKickIsTriedAgain(t *testing.T) {
	t.Parallel()
	var kicks atomic.Int64
	addr := serveRaw(t, func(_ any, stream grpc.ServerStream) error {
		var in []byte
		if err := stream.RecvMsg(&in); err != nil {
			return err
		}
		if kicks.Add(1) == 1 {
			return status.Error(codes.Unavailable, "not now")
		}
		return stream.SendMsg([]byte{})
	})
	r := run(t, startLogic(t, &logic{}), patient)
	gone := routes.Route{UID: "alice", DeviceID: "phone", Incarnation: "gw-away", Addr: addr, ConnID: 1, Epoch: 1}
	r.g.displaceAll([]routes.Route{gone}, false, "phone", "")
	eventually(t, "it was answered", func() bool { return r.g.counters.kicked[kickSent].Load() == 1 })
	if n := kicks.Load(); n < 2 {
		t.Errorf("%d kicks came", n)
	}
	if failed := r.g.counters.kicked[kickFailed].Load(); failed != 0 {
		t.Errorf("%d kicks were given up", failed)
	}
}
