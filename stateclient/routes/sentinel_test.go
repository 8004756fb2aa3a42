package routes

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/internal/testenv"
)

// sentinel starts one Sentinel over a master and its replica.
func sentinel(t *testing.T, master *testenv.Server) string {
	t.Helper()
	host, port, _ := net.SplitHostPort(master.Addr)
	own := freePort(t)
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\nsentinel monitor sluice %s %s 1\nsentinel down-after-milliseconds sluice 500\nsentinel failover-timeout sluice 2000\n", own, host, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("redis-server", conf, "--sentinel")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return net.JoinHostPort("127.0.0.1", own)
}

func TestFailoverToAStaleReplica(t *testing.T) {
	ctx := context.Background()
	master, replica := testenv.Redis(t), testenv.Redis(t)
	host, port, _ := net.SplitHostPort(master.Addr)
	follower := connect(t, replica.Addr)
	if err := follower.SlaveOf(ctx, host, port).Err(); err != nil {
		t.Fatal(err)
	}
	addr := sentinel(t, master)
	watch := redis.NewSentinelClient(&redis.Options{Addr: addr})
	defer func() { _ = watch.Close() }()
	waitFor(t, "the sentinel knows the replica", func() bool {
		replicas, err := watch.Replicas(ctx, "sluice").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok"
	})
	o := RedisOptions{Addrs: []string{addr}, Mode: Sentinel, MasterName: "sluice", Timeout: patience}
	rdb, err := Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rdb.Close() }()
	table := patient(rdb, Options{})
	o.Timeout = time.Second
	own, err := Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	l := runLease(t, own, LeaseOptions{Incarnation: "g1", TTL: time.Minute, Every: 50 * time.Millisecond, Table: table})
	waitFor(t, "healthy", l.Healthy)
	a, b := route("u", "phone", "g1", 1), route("v", "phone", "g1", 2)
	a.Epoch = claimOne(t, table, Claim{Route: a}).Epoch
	b.Epoch = claimOne(t, table, Claim{Route: b}).Epoch
	waitFor(t, "replicated", func() bool { return follower.Exists(ctx, routeKey("u"), routeKey("v")).Val() == 2 })
	// A replica that never heard of one of them.
	if err := follower.ConfigSet(ctx, "replica-read-only", "no").Err(); err != nil {
		t.Fatal(err)
	}
	if err := follower.Del(ctx, routeKey("u")).Err(); err != nil {
		t.Fatal(err)
	}
	master.Kill()
	waitFor(t, "told of the failover", func() bool { return slices.Contains(l.losses(), RunIDChanged) })
	waitFor(t, "healthy again", l.Healthy)
	waitFor(t, "restored", func() bool {
		return slices.Equal(table.Restore(ctx, []Route{a, b}), []RestoreResult{Restored, Held})
	})
}
