package delivery

import (
	"crypto/tls"
	"fmt"
	"time"
)

// Config is how a StateServer delivers. The keys are the operator's (deploy/stateserver.yaml).
type Config struct {
	// Instance names this StateServer in the leases of the resend shards; empty = a random name.
	Instance string `koanf:"-"`
	Resend   Resend `koanf:"resend"`
	Push     Push   `koanf:"push"`
	// LookupTimeout bounds one look into the route table; after it the receivers are unknown, never offline.
	LookupTimeout time.Duration `koanf:"lookup_timeout"`
	// RedisTimeout bounds one round trip to the resend table. The client's ContextTimeoutEnabled must be set for it to hold.
	RedisTimeout time.Duration `koanf:"redis_timeout"`
	// DrainTimeout is how long Run goes on, after its context ended, with what was enqueued before. What is left then is
	// above the mark and is delivered at the next start.
	DrainTimeout time.Duration `koanf:"drain_timeout"`
}

// Resend is the schedule of resends and their bounds.
type Resend struct {
	// AckTimeout is how long a pushed message may be without the client's ack.
	AckTimeout time.Duration `koanf:"ack_timeout"`
	// Backoff is how long after that, and after each resend, the next one comes; its last value is repeated.
	Backoff []time.Duration `koanf:"backoff"`
	// Max is how many resends there are before the entry ends as exhausted; 0 = none.
	Max int `koanf:"max"`
	// ScanEvery is the pause between two looks for resends that are due.
	ScanEvery time.Duration `koanf:"scan_every"`
	// PerUIDMax bounds the entries of one user; the oldest is dropped.
	PerUIDMax int `koanf:"per_uid_max"`
	// GroupMembersMax is the largest number of receivers that get resends; messages to more are pushed once.
	GroupMembersMax int `koanf:"group_members_max"`
}

// Push is how gateways are reached.
type Push struct {
	// Timeout bounds one Push call. After it the outcome is unknown: the message is resent, the route stays.
	Timeout time.Duration `koanf:"timeout"`
	// Token goes along as "authorization: Bearer <token>" when it is set.
	Token string `koanf:"token"`
	// TLS is nil for plain text.
	TLS *tls.Config `koanf:"-"`
}

// Default is a message's time budget: pushed at once, and again after 11, 15 and 31 s.
func Default() Config {
	return Config{
		Resend: Resend{
			AckTimeout:      10 * time.Second,
			Backoff:         []time.Duration{time.Second, 4 * time.Second, 16 * time.Second},
			Max:             3,
			ScanEvery:       100 * time.Millisecond,
			PerUIDMax:       200,
			GroupMembersMax: 500,
		},
		Push:          Push{Timeout: 200 * time.Millisecond},
		LookupTimeout: 50 * time.Millisecond,
		RedisTimeout:  500 * time.Millisecond,
		DrainTimeout:  2 * time.Second,
	}
}

const (
	// resendsMax bounds resend.max: ten attempts reach far beyond any sensible schedule, and each is a metric label.
	resendsMax = 10
	// perUIDMaxMax bounds resend.per_uid_max: the scripts walk all entries of a user while Redis waits.
	perUIDMaxMax = 1000
)

// Validate names the first key whose value cannot be used, and what is allowed.
func (c Config) Validate() error {
	positive := []struct {
		key   string
		value time.Duration
	}{
		{"resend.ack_timeout", c.Resend.AckTimeout},
		{"resend.scan_every", c.Resend.ScanEvery},
		{"push.timeout", c.Push.Timeout},
		{"lookup_timeout", c.LookupTimeout},
		{"redis_timeout", c.RedisTimeout},
		{"drain_timeout", c.DrainTimeout},
	}
	for _, p := range positive {
		if p.value <= 0 {
			return fmt.Errorf("%s: %v is not allowed, must be above 0", p.key, p.value)
		}
	}
	if len(c.Resend.Backoff) == 0 {
		return fmt.Errorf("resend.backoff: must have at least one value")
	}
	for _, b := range c.Resend.Backoff {
		if b <= 0 {
			return fmt.Errorf("resend.backoff: %v is not allowed, must be above 0", b)
		}
	}
	ranges := []struct {
		key             string
		value, min, max int
	}{
		{"resend.max", c.Resend.Max, 0, resendsMax},
		{"resend.per_uid_max", c.Resend.PerUIDMax, 1, perUIDMaxMax},
		{"resend.group_members_max", c.Resend.GroupMembersMax, 1, 1 << 20},
	}
	for _, r := range ranges {
		if r.value < r.min || r.value > r.max {
			return fmt.Errorf("%s: %d is not allowed, must be %d to %d", r.key, r.value, r.min, r.max)
		}
	}
	return nil
}
