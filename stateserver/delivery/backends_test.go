package delivery

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/internal/devredis"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateclient/routes"
)

// The whole way on every kind of Redis, with the real route table.
func TestWholeWay(t *testing.T) {
	for name, open := range map[string]func(*testing.T) redis.UniversalClient{"standalone": standalone, "cluster": cluster, "embedded": embedded} {
		t.Run(name, func(t *testing.T) { wholeWay(t, open(t)) })
	}
}

func standalone(t *testing.T) redis.UniversalClient {
	return connect(t, routes.RedisOptions{Addrs: []string{testenv.Redis(t).Addr}})
}

func embedded(t *testing.T) redis.UniversalClient {
	s, err := devredis.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return connect(t, routes.RedisOptions{Addrs: []string{s.Addr()}})
}

// cluster has two masters, so that a script that touches two slots fails.
func cluster(t *testing.T) redis.UniversalClient {
	ctx := context.Background()
	var addrs []string
	var bus, first string
	for i, slots := range [][2]int{{0, 8191}, {8192, 16383}} {
		port := freePort(t)
		s := testenv.Redis(t, "--cluster-enabled", "yes", "--cluster-port", port)
		c := redisClient(t, s.Addr)
		if err := c.Do(ctx, "cluster", "addslotsrange", slots[0], slots[1]).Err(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			bus, first = port, s.Addr
		} else {
			host, port, _ := net.SplitHostPort(first)
			if err := c.Do(ctx, "cluster", "meet", host, port, bus).Err(); err != nil {
				t.Fatal(err)
			}
		}
		addrs = append(addrs, s.Addr)
	}
	for _, addr := range addrs {
		c := redisClient(t, addr)
		eventually(t, "the cluster is up", func() bool {
			info := c.ClusterInfo(ctx).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_size:2")
		})
	}
	return connect(t, routes.RedisOptions{Addrs: addrs, Mode: routes.Cluster})
}

func freePort(t *testing.T) string {
	_, port, _ := net.SplitHostPort(testenv.FreeAddr(t))
	return port
}

func connect(t *testing.T, o routes.RedisOptions) redis.UniversalClient {
	o.Timeout = waitMax
	rdb, err := routes.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func wholeWay(t *testing.T, rdb redis.UniversalClient) {
	const users = 60
	g := newGateway(t)
	ctx, cancel := context.WithCancel(context.Background())
	live := routes.NewLive(rdb, routes.LiveOptions{Timeout: waitMax})
	table := routes.New(rdb, routes.Options{Timeout: waitMax, LookupTimeout: waitMax, Live: live})
	lease := routes.NewLease(rdb, routes.LeaseOptions{Incarnation: "gw@" + g.addr, Addr: g.addr, Timeout: waitMax, Table: table})
	done := make(chan struct{})
	go func() { defer close(done); _ = lease.Run(ctx) }() // ends with ctx
	defer func() { cancel(); <-done }()
	eventually(t, "gateway's lease", lease.Healthy)
	var claims []routes.Claim
	for i, uid := range uids(users) {
		r := g.route(uid, "phone", uint64(i+1))
		r.Epoch = 0
		claims = append(claims, routes.Claim{Route: r, DevicesMax: 16})
	}
	for _, r := range table.Claim(ctx, claims) {
		if r.Err != nil || r.Lost {
			t.Fatalf("claim: %+v", r)
		}
	}

	w := &world{t: t, fakeStore: newFakeStore()}
	c := fastConfig()
	c.Resend.AckTimeout = 400 * time.Millisecond
	n := w.node(c, func(d *Deps) { d.Redis, d.Routes = rdb, table })
	// Users with two digits ack at once; of the others, half ack the first resend and half never do.
	g.arrived = func(a arrival) {
		seen := len(g.seqs(a.target.GetUid(), "phone"))
		if len(a.target.GetUid())%3 == 0 || seen == 2 && a.down.GetSeq()%2 == 0 {
			if _, err := n.Acked(ctx, a.target.GetUid(), a.target.GetDeviceId(), a.down.GetConvId(), a.down.GetSeq()); err != nil && ctx.Err() == nil {
				t.Error(err) // a resend may still arrive when the test is over
			}
		}
	}
	for i, uid := range uids(users) {
		n.send(to(int64(i+1), uid, int64(i+1)))
	}
	n.send(to(users+1, "nobody", 1))
	eventually(t, "mark", func() bool { return n.Mark() == users+1 })
	eventually(t, "all settled", func() bool {
		return n.pairs(pairAcked)+n.pairs(pairExhausted)+n.pairs(pairOffline) == users+1
	})
	if n.pairs(pairAcked) == 0 || n.pairs(pairExhausted) == 0 || n.pairs(pairOffline) != 1 || n.pairs(pairEnrolled) != users+1 || n.pairs(pairLost) != 0 {
		t.Fatal("not acked, exhausted and offline as they should be")
	}
	if left, err := n.table.count(ctx, uids(users)); err != nil || left != 0 {
		t.Fatal(left, err)
	}
	eventually(t, "no hint left", func() bool {
		for s := range shards {
			if n.table.rdb.ZCard(ctx, dueKey(s)[0]).Val() > 0 {
				return false
			}
		}
		return true
	})
}
