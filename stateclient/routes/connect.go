package routes

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ErrRedisOptions is what Connect returns for options that name no server.
var ErrRedisOptions = errors.New("bad redis options")

// Mode is how a Redis is set up.
type Mode string

const (
	// Standalone is one server.
	Standalone Mode = "standalone"
	// Sentinel is a master that Sentinels name; RedisOptions.Addrs are theirs.
	Sentinel Mode = "sentinel"
	// Cluster is a Redis Cluster; RedisOptions.Addrs are some of its nodes.
	Cluster Mode = "cluster"
)

// poolSize bounds the connections to one node unless told otherwise: each call is one pipeline of up to 512 commands, so that
// a few are many, and what finds none waits no longer than its time-out.
const poolSize = 16

// RedisOptions say how Redis is reached. A zero field means its default.
type RedisOptions struct {
	// Addrs are host:port each.
	Addrs []string
	// Mode is Standalone by default.
	Mode Mode
	// MasterName is what the Sentinels call the master.
	MasterName string
	Username   string
	Password   string
	TLS        *tls.Config
	// PoolSize bounds the connections, for each node of a Cluster (16).
	PoolSize int
	// DB is the number of the database; always 0 on a Cluster.
	DB int
	// Timeout bounds a dial, a read and a write, where the context does not end sooner (1 s).
	Timeout time.Duration
}

// Connect makes a client as this package needs it: deadlines of contexts hold, nothing is sent twice by itself, and
// nothing is read from a replica. It does not wait for a server to be there. The caller closes it.
func Connect(o RedisOptions) (redis.UniversalClient, error) {
	o.Mode = cmp.Or(o.Mode, Standalone)
	o.Timeout = cmp.Or(o.Timeout, time.Second)
	switch {
	case len(o.Addrs) == 0:
		return nil, fmt.Errorf("%w: no address", ErrRedisOptions)
	case o.Mode == Standalone && len(o.Addrs) > 1:
		return nil, fmt.Errorf("%w: standalone with %d addresses", ErrRedisOptions, len(o.Addrs))
	case o.Mode == Sentinel && o.MasterName == "":
		return nil, fmt.Errorf("%w: sentinel without a master's name", ErrRedisOptions)
	}
	u := &redis.UniversalOptions{
		Addrs: o.Addrs, MasterName: o.MasterName, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS,
		PoolSize:    cmp.Or(o.PoolSize, poolSize),
		DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
		ContextTimeoutEnabled: true,
		// A retry would hide an unknown outcome, and run a claim twice.
		MaxRetries: -1, DialerRetries: 1,
		// Nothing here needs RESP3, and each exchange at connect time costs a round trip after an outage.
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	switch o.Mode {
	case Standalone:
		return redis.NewClient(u.Simple()), nil
	case Sentinel:
		return redis.NewFailoverClient(u.Failover()), nil
	case Cluster:
		return redis.NewClusterClient(u.Cluster()), nil
	default:
		return nil, fmt.Errorf("%w: mode %q, allowed are standalone, sentinel, cluster", ErrRedisOptions, o.Mode)
	}
}
