package stateserver

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// Bounds of the Redis client: a hung Redis costs a caller its own timeout, never a connection for good.
const (
	redisDial = time.Second
	redisIO   = 500 * time.Millisecond
)

func newRedis(cfg Config) redis.UniversalClient {
	o := &redis.UniversalOptions{
		Addrs: cfg.Redis.Addrs, Username: cfg.Redis.Username, Password: cfg.Redis.Password, DB: cfg.Redis.DB,
		DialTimeout: redisDial, ReadTimeout: redisIO, WriteTimeout: redisIO,
		// A deadline of the caller holds for the connection too.
		ContextTimeoutEnabled: true,
		// A command that may have run is not sent twice behind our back.
		MaxRetries: -1,
		// One attempt to connect a call: the next call is the next attempt.
		DialerRetries: 1,
	}
	switch cfg.Redis.Mode {
	case "sentinel":
		o.MasterName = cfg.Redis.Master
		return redis.NewFailoverClient(o.Failover())
	case "cluster":
		return redis.NewClusterClient(o.Cluster())
	default:
		return redis.NewClient(o.Simple())
	}
}
