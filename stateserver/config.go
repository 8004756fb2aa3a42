package stateserver

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/sluice-im/sluice/stateserver/hooks"
	"github.com/sluice-im/sluice/stateserver/store"
)

// Config is how a StateServer runs; the keys are those of the operator's page (design: operations, "StateServer").
type Config struct {
	GRPC     GRPC     `koanf:"grpc"`
	Admin    Admin    `koanf:"admin"`
	Store    Store    `koanf:"store"`
	Redis    Redis    `koanf:"redis"`
	Dedup    Dedup    `koanf:"dedup"`
	Reorder  Reorder  `koanf:"reorder"`
	Receipts Receipts `koanf:"receipts"`
	Limits   Limits   `koanf:"limits"`
	Resend   Resend   `koanf:"resend"`
	Push     Push     `koanf:"push"`
	Routes   Routes   `koanf:"routes"`
	Hooks    Hooks    `koanf:"hooks"`
	Log      Log      `koanf:"log"`
}

// GRPC is where gateways connect.
type GRPC struct {
	Addr string `koanf:"addr"`
	// Token is what gateways must send as "authorization: Bearer <token>"; empty = nothing is asked.
	Token string `koanf:"token"`
	TLS   TLS    `koanf:"tls"`
	// Drain is how long streams may take to end after the server said that it is draining.
	Drain time.Duration `koanf:"drain"`
}

// TLS is empty for plain text.
type TLS struct {
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
	// CA makes client certificates signed by it mandatory.
	CA string `koanf:"ca"`
}

// Admin is the port for probes, metrics and profiles; an empty address switches it off.
type Admin struct {
	Addr string `koanf:"addr"`
	// Token is asked for as a bearer token by everything but the two probes; empty = nothing is asked.
	Token string `koanf:"token"`
}

// Store is the database.
type Store struct {
	// DSN is sqlite://path or mysql://user:password@tcp(host:port)/database.
	DSN string `koanf:"dsn"`
	// Wait is how long a message may wait until it is stored; then it is answered RETRY, whatever becomes of it.
	Wait time.Duration `koanf:"wait"`
}

// Redis is one of: standalone (one address), sentinel (addresses of sentinels and the master's name), cluster.
type Redis struct {
	Addrs    []string `koanf:"addrs"`
	Mode     string   `koanf:"mode"`
	Master   string   `koanf:"master"`
	Username string   `koanf:"username"`
	Password string   `koanf:"password"`
	DB       int      `koanf:"db"`
}

// Dedup is the first gate against doubled messages.
type Dedup struct {
	// TTL is how long a first result is remembered in Redis; at least as long as clients resend.
	TTL time.Duration `koanf:"ttl"`
	// Timeout bounds one look; then the messages are answered RETRY.
	Timeout time.Duration `koanf:"timeout"`
}

// Reorder is how long and how many messages of windowed senders are held behind a missing one.
type Reorder struct {
	Window int           `koanf:"window"`
	Wait   time.Duration `koanf:"wait"`
	// Policy is refuse or deliver.
	Policy string `koanf:"policy"`
}

// Receipts bounds what senders are told of receivers.
type Receipts struct {
	// GroupMax is the largest group whose members' positions are told to senders.
	GroupMax int `koanf:"group_max"`
}

// Limits bounds what clients send.
type Limits struct {
	// FrameBytes is the gateways' limit for a frame; a body is at most 2 KiB less.
	FrameBytes int `koanf:"frame_bytes"`
	// UIDMessagesPerSecond bounds the messages of one user; 0 = off.
	UIDMessagesPerSecond int `koanf:"uid_messages_per_second"`
}

// Resend is the schedule of resends; the delivery takes it.
type Resend struct {
	AckTimeout      time.Duration   `koanf:"ack_timeout"`
	Backoff         []time.Duration `koanf:"backoff"`
	Max             int             `koanf:"max"`
	ScanEvery       time.Duration   `koanf:"scan_every"`
	PerUIDMax       int             `koanf:"per_uid_max"`
	GroupMembersMax int             `koanf:"group_members_max"`
}

// Push is how gateways are reached; the delivery takes it.
type Push struct {
	Timeout time.Duration `koanf:"timeout"`
	Token   string        `koanf:"token"`
}

// Routes bounds looks into the route table; the delivery takes it.
type Routes struct {
	LookupTimeout time.Duration `koanf:"lookup_timeout"`
}

// Hooks are who else is told of what happens, at least once per event: each an http:// or https:// URL that takes a POST of
// JSON, or a gRPC target of state.v1.Hooks; empty = nobody. All StateServers of a database have the same.
type Hooks struct {
	// Stored is told of every stored message.
	Stored string `koanf:"stored"`
	// Offline is told of every receiver who was offline, members of groups above resend.group_members_max excepted.
	Offline string `koanf:"offline"`
	// Token goes along as "authorization: Bearer <token>" when it is set.
	Token string `koanf:"token"`
	// Timeout bounds one call; then it is made again.
	Timeout time.Duration `koanf:"timeout"`
}

// Log is how lines are written; the command takes it.
type Log struct {
	Level  string `koanf:"level"`
	Format string `koanf:"format"`
}

// Default is the configuration of the operator's page.
func Default() Config {
	return Config{
		GRPC:     GRPC{Addr: ":9200", Drain: 5 * time.Second},
		Admin:    Admin{Addr: "127.0.0.1:9201"},
		Store:    Store{DSN: "sqlite://sluice.db", Wait: 200 * time.Millisecond},
		Redis:    Redis{Addrs: []string{"127.0.0.1:6379"}, Mode: "standalone"},
		Dedup:    Dedup{TTL: 5 * time.Minute, Timeout: 50 * time.Millisecond},
		Reorder:  Reorder{Window: 64, Wait: 50 * time.Millisecond, Policy: "refuse"},
		Receipts: Receipts{GroupMax: 100},
		Limits:   Limits{FrameBytes: 65536},
		Resend: Resend{AckTimeout: 10 * time.Second, Backoff: []time.Duration{time.Second, 4 * time.Second, 16 * time.Second}, Max: 3,
			ScanEvery: 100 * time.Millisecond, PerUIDMax: 200, GroupMembersMax: 500},
		Push:   Push{Timeout: 200 * time.Millisecond},
		Routes: Routes{LookupTimeout: 50 * time.Millisecond},
		Hooks:  Hooks{Timeout: 10 * time.Second},
		Log:    Log{Level: "info", Format: "json"},
	}
}

// dedupTTLMin is the documents' client's give_up (60 s) and its three resends (≤ 5 s each, doubled, jittered), rounded up:
// a result forgotten earlier than the last resend would cost the store a look each time.
const dedupTTLMin = 2 * time.Minute

// bodyReserve is what a frame holds beside the body: ids, framing, envelope.
const bodyReserve = 2048

// Validate names the first key whose value cannot be used, the value, and what is allowed.
func (c Config) Validate() error {
	if err := c.validateAddresses(); err != nil {
		return err
	}
	for _, d := range []struct {
		key             string
		value, min, max time.Duration
	}{
		{"grpc.drain", c.GRPC.Drain, 0, time.Minute},
		{"store.wait", c.Store.Wait, time.Millisecond, time.Minute},
		{"dedup.ttl", c.Dedup.TTL, dedupTTLMin, 24 * time.Hour},
		{"dedup.timeout", c.Dedup.Timeout, time.Millisecond, time.Second},
		{"reorder.wait", c.Reorder.Wait, time.Millisecond, time.Second},
		{"resend.ack_timeout", c.Resend.AckTimeout, time.Millisecond, time.Hour},
		{"resend.scan_every", c.Resend.ScanEvery, time.Millisecond, time.Minute},
		{"push.timeout", c.Push.Timeout, time.Millisecond, time.Minute},
		{"routes.lookup_timeout", c.Routes.LookupTimeout, time.Millisecond, time.Minute},
		{"hooks.timeout", c.Hooks.Timeout, time.Millisecond, time.Minute},
	} {
		if d.value < d.min || d.value > d.max {
			return fmt.Errorf("%s is %v, allowed is %v to %v", d.key, d.value, d.min, d.max)
		}
	}
	for _, n := range []struct {
		key             string
		value, min, max int
	}{
		{"reorder.window", c.Reorder.Window, 1, 1024},
		{"receipts.group_max", c.Receipts.GroupMax, 0, 10_000},
		{"limits.frame_bytes", c.Limits.FrameBytes, 2 * bodyReserve, 1 << 20},
		{"limits.uid_messages_per_second", c.Limits.UIDMessagesPerSecond, 0, 1 << 20},
		{"redis.db", c.Redis.DB, 0, 1 << 20},
	} {
		if n.value < n.min || n.value > n.max {
			return fmt.Errorf("%s is %d, allowed is %d to %d", n.key, n.value, n.min, n.max)
		}
	}
	if p := c.Reorder.Policy; p != "refuse" && p != "deliver" {
		return fmt.Errorf("reorder.policy is %q, allowed is refuse or deliver", p)
	}
	for key, target := range map[string]string{"hooks.stored": c.Hooks.Stored, "hooks.offline": c.Hooks.Offline} {
		if target == "" {
			continue
		}
		if err := hooks.ValidTarget(target); err != nil {
			return fmt.Errorf("%s is %q, it %w", key, target, err)
		}
	}
	if err := store.ValidDSN(c.Store.DSN); err != nil {
		return fmt.Errorf("store.dsn %w", err)
	}
	return nil
}

func (c Config) validateAddresses() error {
	if !isAddr(c.GRPC.Addr) {
		return fmt.Errorf("grpc.addr is %q, allowed is host:port, the port a number up to 65535", c.GRPC.Addr)
	}
	if c.Admin.Addr != "" && !isAddr(c.Admin.Addr) {
		return fmt.Errorf("admin.addr is %q, allowed is host:port, the port a number up to 65535, or nothing", c.Admin.Addr)
	}
	if (c.GRPC.TLS.Cert == "") != (c.GRPC.TLS.Key == "") {
		return fmt.Errorf("grpc.tls has cert %q and key %q, allowed is both or none", c.GRPC.TLS.Cert, c.GRPC.TLS.Key)
	}
	if c.GRPC.TLS.CA != "" && c.GRPC.TLS.Cert == "" {
		return fmt.Errorf("grpc.tls.ca is %q, allowed only with cert and key", c.GRPC.TLS.CA)
	}
	switch m := c.Redis.Mode; {
	case m != "standalone" && m != "sentinel" && m != "cluster":
		return fmt.Errorf("redis.mode is %q, allowed is standalone, sentinel or cluster", m)
	case m == "sentinel" && c.Redis.Master == "":
		return fmt.Errorf("redis.master is empty, redis.mode sentinel needs the master's name")
	case len(c.Redis.Addrs) == 0:
		return fmt.Errorf("redis.addrs is empty, allowed is one address or more")
	case m == "standalone" && len(c.Redis.Addrs) > 1:
		return fmt.Errorf("redis.addrs is %v, allowed is one address, since redis.mode is standalone", c.Redis.Addrs)
	}
	for _, a := range c.Redis.Addrs {
		if host, port, _ := net.SplitHostPort(a); !isAddr(a) || host == "" || port == "0" {
			return fmt.Errorf("redis.addrs has %q, allowed is host:port, the port a number from 1 to 65535", a)
		}
	}
	return nil
}

// isAddr: the host may be empty, and port 0 stands for any.
func isAddr(s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
