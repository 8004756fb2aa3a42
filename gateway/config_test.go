package gateway

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestDefaultNeedsOnlyAKey(t *testing.T) {
	c := Default()
	c.Auth.JWT.Secret = tokenSecret
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if err := talkConfig().Validate(); err != nil {
		t.Fatal(err)
	}
}

// TestValidateNamesTheField: each bad value is refused by its key, with the value and what is allowed.
// unusable has one bad value a key.
func unusable() map[string]func(c *Config) {
	return map[string]func(c *Config){
		"gateway.id":                        func(c *Config) { c.Gateway.ID = "a b" },
		"gateway.advertise":                 func(c *Config) { c.Gateway.Advertise = "here" },
		"engine.name":                       func(c *Config) { c.Engine.Name = "fast" },
		"engine.loops":                      func(c *Config) { c.Engine.Loops = -1 },
		"listeners":                         func(c *Config) { c.Listeners = nil },
		"listeners[1].name":                 func(c *Config) { c.Listeners[1].Name = "ws" },
		"listeners[0].protocol":             func(c *Config) { c.Listeners[0].Protocol = "udp" },
		"listeners[0].addr":                 func(c *Config) { c.Listeners[0].Addr = "8080" },
		"listeners[0].path":                 func(c *Config) { c.Listeners[0].Path = "ws" },
		"listeners[0].origins[0]":           func(c *Config) { c.Listeners[0].Origins = []string{"example.com"} },
		"listeners[0].tls":                  func(c *Config) { c.Listeners[0].TLS.Cert = "x" },
		"listeners[0].tls.client_ca":        func(c *Config) { c.Listeners[0].TLS.ClientCA = "x" },
		"listeners[1].tls.cert":             func(c *Config) { c.Listeners[1].TLS = TLS{Cert: "/nowhere", Key: "/nowhere"} },
		"listeners[0].proxy_protocol":       func(c *Config) { c.Listeners[0].ProxyProtocol = "always" },
		"listeners[0].trusted_proxies":      func(c *Config) { c.Listeners[0].ProxyProtocol = "optional" },
		"listeners[0].compression":          func(c *Config) { c.Listeners[0].Compression = "yes" },
		"listeners[1].compression":          func(c *Config) { c.Listeners[1].Compression = "on" },
		"listeners[0].trusted_proxies[0]":   func(c *Config) { c.Listeners[0].TrustedProxies = []string{"10.0.0.0/99"} },
		"listeners[1].addr":                 func(c *Config) { c.Listeners[1].Addr = "127.0.0.1:99999" },
		"internal.addr":                     func(c *Config) { c.Internal.Addr = "" },
		"internal.tls":                      func(c *Config) { c.Internal.TLS.Key = "k" },
		"admin.addr":                        func(c *Config) { c.Admin.Addr = "x" },
		"auth.mode":                         func(c *Config) { c.Auth.Mode = "none" },
		"auth.jwt.secret":                   func(c *Config) { c.Auth.JWT.Secret = "short" },
		"auth.jwt.jwks_url":                 func(c *Config) { c.Auth.JWT.JWKSURL = "https://example.com" },
		"auth.jwt.public_key_file":          func(c *Config) { c.Auth.JWT = JWT{PublicKeyFile: "/nowhere", UIDClaim: "sub"} },
		"auth.jwt.uid_claim":                func(c *Config) { c.Auth.JWT.UIDClaim = "" },
		"limits.connections":                func(c *Config) { c.Limits.Connections = 0 },
		"limits.accept.burst":               func(c *Config) { c.Limits.Accept.Burst = -1 },
		"limits.handshake.timeout":          func(c *Config) { c.Limits.Handshake.Timeout = 0 },
		"limits.handshake.header_bytes":     func(c *Config) { c.Limits.Handshake.HeaderBytes = 1 },
		"limits.frame.bytes":                func(c *Config) { c.Limits.Frame.Bytes = 100 },
		"limits.frame.fragments":            func(c *Config) { c.Limits.Frame.Fragments = 0 },
		"limits.uplink.mode":                func(c *Config) { c.Limits.Uplink.Mode = "drop" },
		"limits.uplink.messages_per_second": func(c *Config) { c.Limits.Uplink.MessagesPerSecond = 0 },
		"limits.errors.count":               func(c *Config) { c.Limits.Errors.Count = -1 },
		"limits.errors.window":              func(c *Config) { c.Limits.Errors.Window = 0 },
		"backpressure.inflight_frames":      func(c *Config) { c.Backpressure.InflightFrames = 0 },
		"backpressure.outbox_bytes":         func(c *Config) { c.Backpressure.OutboxBytes = 8192 },
		"backpressure.relay_queue":          func(c *Config) { c.Backpressure.RelayQueue = 0 },
		"backpressure.park_max":             func(c *Config) { c.Backpressure.ParkMax = 0 },
		"backpressure.memory_high":          func(c *Config) { c.Backpressure.MemoryHigh = 1.5 },
		"heartbeat.idle_timeout":            func(c *Config) { c.Heartbeat.IdleTimeout = 31 * time.Second },
		"relay.mode":                        func(c *Config) { c.Relay.Mode = "both" },
		"relay.targets":                     func(c *Config) { c.Relay.Targets = "" },
		"relay.timeout":                     func(c *Config) { c.Relay.Timeout = 0 },
		"relay.batch":                       func(c *Config) { c.Relay.Batch = 0 },
		"routes.redis.addrs":                func(c *Config) { c.Routes.Redis.Addrs = nil },
		"routes.redis.mode":                 func(c *Config) { c.Routes.Redis.Mode = "many" },
		"routes.redis.master":               func(c *Config) { c.Routes.Redis.Mode = "sentinel" },
		"routes.lease":                      func(c *Config) { c.Routes.Lease = 0 },
		"routes.devices_max":                func(c *Config) { c.Routes.DevicesMax = 17 },
		"routes.policy":                     func(c *Config) { c.Routes.Policy = "any" },
		"routes.on_redis_down":              func(c *Config) { c.Routes.OnRedisDown = "wait" },
		"drain.rate":                        func(c *Config) { c.Drain.Rate = -1 },
		"log.level":                         func(c *Config) { c.Log.Level = "loud" },
		"log.format":                        func(c *Config) { c.Log.Format = "xml" },
	}
}

func TestValidateNamesTheField(t *testing.T) {
	for key, change := range unusable() {
		c := Default()
		c.Auth.JWT.Secret = tokenSecret
		change(&c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), key+": ") || !strings.Contains(err.Error(), "is not allowed: want ") {
			t.Errorf("%s: %v", key, err)
		}
		if _, err := New(c, Deps{}); err == nil {
			t.Errorf("%s: New takes it", key)
		}
	}
}

func TestSecretsAreNotQuoted(t *testing.T) {
	c := Default()
	c.Auth.JWT.Secret = "hunter2"
	if err := c.Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
}

// TestInsecureStaysAtHome: without tokens only this machine may connect.
func TestInsecureStaysAtHome(t *testing.T) {
	for addr, ok := range map[string]bool{"127.0.0.1:8080": true, "[::1]:8080": true, "localhost:8080": true, ":8080": false,
		"0.0.0.0:8080": false, "192.0.2.1:8080": false} {
		c := talkConfig()
		c.Listeners[0].Addr = addr
		err := c.Validate()
		var field *FieldError
		if (err == nil) != ok || err != nil && (!errors.As(err, &field) || field.Key != "listeners[0].addr") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}
