package stateserver

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/stateserver/dedup"
)

// patient gives the dedup gate more time than is allowed, if the configuration gives it all that is: then its time-out is
// not what the test is about.
func (s *Server) patient() {
	if s.cfg.Dedup.Timeout == time.Second {
		s.gate = dedup.New(s.redis, s.cfg.Dedup.TTL, waitMax)
	}
}

// patientRedis gives a server that has none a client without the product's time-outs, unless dedup.timeout says that the
// test is about them. The caller closes it, used or not.
func patientRedis(cfg Config, deps *Deps) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: cfg.Redis.Addrs[0], ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		ReadTimeout: waitMax, WriteTimeout: waitMax})
	if deps.Redis == nil && cfg.Dedup.Timeout == time.Second {
		deps.Redis = rdb
	}
	return rdb
}
