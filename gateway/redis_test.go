package gateway

import (
	"testing"
	"time"

	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateclient/routes"
)

// TestRedisGoesAndComes: the connections that are there go on, new ones are refused, and after a restart without data
// every route is there again and its client was told.
func TestRedisGoesAndComes(t *testing.T) {
	redis := testenv.Redis(t)
	r := run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		patient(c, d)
		d.Routes = nil
		c.Routes.Redis.Addrs = []string{redis.Addr}
		c.Routes.Lease = 6 * time.Second // renewed, and so missed, every two seconds
	})
	eventually(t, "the lease stands", func() bool { return len(r.g.Ready()) == 0 })
	online := func(uid string) bool {
		found, err := r.g.routes.table.Find(t.Context(), []string{uid})
		return err == nil && len(found[uid]) == 1
	}
	w := r.dial(t, protocolTCP, "alice", "phone")
	eventually(t, "alice has a route", func() bool { return online("alice") })
	gone := r.dial(t, protocolTCP, "bob", "phone")

	redis.Kill()
	eventually(t, "redis is missing", func() bool { return len(r.g.Ready()) == 1 && r.g.Ready()[0] == "redis" })
	w.up("u1", "bob")
	w.want("MESSAGEACK u1 ACK_OK")
	late := r.connect(t, protocolTCP)
	late.send(late.frame(1, loginAs("carol")))
	late.want("ERROR routes_unavailable 4014", "EOF")
	_ = gone.conn.Close()
	eventually(t, "bob is gone", func() bool { return r.g.gauges.live() == 1 })

	redis.Start()
	w.want("RESYNC route_restored")
	eventually(t, "redis is back", func() bool { return len(r.g.Ready()) == 0 })
	eventually(t, "alice has a route again", func() bool { return online("alice") })
	if online("bob") || online("carol") {
		t.Error("who is gone has a route")
	}
	again := r.dial(t, protocolTCP, "alice", "phone")
	w.want("KICK displaced phone 4501", "EOF")
	_ = again.conn.Close()
	eventually(t, "the route is released", func() bool { return !online("alice") })

	last := r.dial(t, protocolTCP, "alice", "phone")
	rdb, err := routes.Connect(routes.RedisOptions{Addrs: []string{redis.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rdb.Close() }()
	left := func() []string {
		keys, err := rdb.Keys(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	if keys := left(); len(keys) != 3 { // the route, the lease and the list of leases
		t.Errorf("keys: %v", keys)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	last.want("ERROR draining 1012", "EOF")
	if keys := left(); len(keys) != 0 {
		t.Errorf("after a clean end: %v", keys)
	}
}
