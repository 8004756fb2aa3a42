package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/internal/testenv"
)

// cluster starts a Redis Cluster of three masters.
func cluster(t *testing.T) ([]*testenv.Server, redis.UniversalClient) {
	t.Helper()
	ctx := context.Background()
	var nodes []*testenv.Server
	var addrs, buses []string
	for i := range 3 {
		bus := freePort(t)
		nodes = append(nodes, testenv.Redis(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "2000",
			"--cluster-require-full-coverage", "no", "--appendonly", "yes"))
		addrs, buses = append(addrs, nodes[i].Addr), append(buses, bus)
	}
	for i, node := range nodes {
		rdb := connect(t, node.Addr)
		const slots = 16384
		if err := rdb.Do(ctx, "cluster", "addslotsrange", i*slots/3, (i+1)*slots/3-1).Err(); err != nil {
			t.Fatal(err)
		}
		host, port, _ := net.SplitHostPort(addrs[0])
		if i > 0 {
			if err := rdb.Do(ctx, "cluster", "meet", host, port, buses[0]).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, node := range nodes {
		rdb := connect(t, node.Addr)
		waitFor(t, "the cluster agrees", func() bool {
			shards, err := rdb.ClusterSlots(ctx).Result()
			if err != nil || len(shards) != 3 {
				return false
			}
			info, err := rdb.ClusterInfo(ctx).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") // all slots known, and a moment has passed
		})
	}
	rdb, err := Connect(RedisOptions{Addrs: addrs, Mode: Cluster})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return nodes, rdb
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(testenv.FreeAddr(t))
	return port
}

func TestCluster(t *testing.T) {
	nodes, rdb := cluster(t)
	ctx, live := context.Background(), NewLive(rdb, LiveOptions{Timeout: patience})
	table := patient(rdb, Options{Live: live})
	l := runLease(t, rdb, LeaseOptions{Incarnation: "g1", TTL: time.Hour, Timeout: patience, Every: 50 * time.Millisecond, Table: table})
	waitFor(t, "healthy", l.Healthy)
	if err := live.refresh(ctx); err != nil {
		t.Fatal(err)
	}
	const users = 100
	var claims []Claim
	var uids []string
	for i := range users {
		uids = append(uids, "user"+strconv.Itoa(i))
		claims = append(claims, Claim{Route: route(uids[i], "phone", "g1", uint64(i))})
	}
	routes := make([]Route, users)
	for i, r := range table.Claim(ctx, claims) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		routes[i] = claims[i].Route
		routes[i].Epoch = r.Epoch
	}
	if found, err := table.Find(ctx, uids); err != nil || len(found) != users {
		t.Fatal(len(found), err)
	}
	if got := table.Restore(ctx, routes); slices.Contains(got, Restored) || slices.Contains(got, Unknown) {
		t.Fatal(got)
	}
	if got := l.losses(); len(got) != 0 {
		t.Fatalf("lost %v", got)
	}

	// One master is away: the users of the others are found, its own are unknown.
	nodes[2].Kill()
	found, err := table.Find(ctx, uids)
	var unknown *UnknownError
	if !errors.As(err, &unknown) || len(found) == 0 || len(unknown.UIDs) == 0 || len(found)+len(unknown.UIDs) != users {
		t.Fatal(len(found), err)
	}
	nodes[2].Start()
	waitFor(t, "all found again", func() bool {
		found, err := table.Find(ctx, uids)
		return err == nil && len(found) == users
	})
	waitFor(t, "told of the restart", func() bool { return slices.Contains(l.losses(), RunIDChanged) })
	if err := table.Release(ctx, routes); err != nil {
		t.Fatal(err)
	}
	l.stop()
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	for i, node := range nodes {
		if n := connect(t, node.Addr).DBSize(ctx).Val(); n != 0 {
			t.Fatalf("%d keys left on node %d", n, i)
		}
	}
}

func TestMastersAreCompared(t *testing.T) {
	steps := []struct {
		name string
		seen map[string]string
		err  error
		want []Loss
	}{
		{"first", map[string]string{"a": "1", "b": "2"}, nil, nil},
		{"the same", map[string]string{"a": "1", "b": "2"}, nil, nil},
		{"one away", map[string]string{"a": "1"}, errReply, nil},
		{"back", map[string]string{"a": "1", "b": "2"}, nil, nil},
		{"restarted", map[string]string{"a": "1", "b": "3"}, nil, []Loss{RunIDChanged}},
		{"moved", map[string]string{"a": "1", "c": "3"}, nil, nil},
		{"failed over", map[string]string{"a": "1", "d": "4"}, nil, []Loss{MasterNew}},
		{"and back", map[string]string{"a": "1", "c": "3"}, nil, []Loss{MasterNew}},
		{"none tells", nil, nil, nil},
	}
	l := &Lease{}
	for _, s := range steps {
		if got := l.compareMasters(s.seen, s.err); fmt.Sprint(got) != fmt.Sprint(s.want) {
			t.Fatalf("%s: %v, want %v", s.name, got, s.want)
		}
	}
}

func TestConnectRefusesBadOptions(t *testing.T) {
	for name, o := range map[string]RedisOptions{
		"no address":      {},
		"two standalones": {Addrs: []string{"a:1", "b:1"}},
		"no master name":  {Addrs: []string{"a:1"}, Mode: Sentinel},
		"unknown mode":    {Addrs: []string{"a:1"}, Mode: "ring"},
	} {
		if rdb, err := Connect(o); !errors.Is(err, ErrRedisOptions) || rdb != nil {
			t.Errorf("%s: %v, %v", name, rdb, err)
		}
	}
}
