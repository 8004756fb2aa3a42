package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
	"github.com/sluice-im/sluice/stateclient/routes"
)

// FieldError names a configuration key whose value cannot be used.
type FieldError struct {
	// Key is the path as in the file, for example limits.frame.bytes.
	Key   string
	Value any
	// Allowed says what could stand there instead.
	Allowed string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %v is not allowed: want %s", e.Key, e.Value, e.Allowed)
}

// Bounds of values, where a wrong value would not fail by itself but make the gateway useless or unbounded.
const (
	loopsMax       = 255     // a peer keeps its loop in a byte; more than one a core is waste
	listenersMax   = 64      // each is a label of several metrics
	connectionsMax = 1 << 24 // slots are 32 bits, and a slab of more would not fit any machine of today
	frameBytesMin  = 4096    // a login with a token must fit, and a body beside bodySpare
	frameBytesMax  = 1 << 20 // a frame is held whole; traps 2: 1 MiB of empty submessages is 35 MiB of heap
	headerBytesMin = 512
	headerBytesMax = 65536
	inflightMax    = 65535 // counted in 16 bits
	// A burst is kept as time: so many tokens at one a second are still far from its end.
	messagesRateMax  = 1 << 20
	messagesBurstMax = 1 << 24
	bytesRateMax     = 1 << 30
	gatewayIDMax     = 64 // part of every route
	timeoutMin       = time.Millisecond
	timeoutMax       = 24 * time.Hour
)

// checker gathers what Validate finds, so that an operator sees all of it at once.
type checker struct{ errs []error }

func (c *checker) fail(key string, value any, allowed string) {
	c.errs = append(c.errs, &FieldError{Key: key, Value: value, Allowed: allowed})
}

func (c *checker) oneOf(key, value string, allowed ...string) {
	for _, a := range allowed {
		if value == a {
			return
		}
	}
	c.fail(key, fmt.Sprintf("%q", value), "one of "+strings.Join(allowed, ", "))
}

func (c *checker) between(key string, value, low, high int) {
	if value < low || value > high {
		c.fail(key, value, fmt.Sprintf("%d to %d", low, high))
	}
}

func (c *checker) duration(key string, value, low, high time.Duration) {
	if value < low || value > high {
		c.fail(key, value, fmt.Sprintf("%v to %v", low, high))
	}
}

// addr checks an address to listen on: the host may be empty, and port 0 stands for any.
func (c *checker) addr(key, value string) {
	if _, port, err := net.SplitHostPort(value); err != nil || !isPort(port) {
		c.fail(key, fmt.Sprintf("%q", value), "host:port, the port a number up to 65535")
	}
}

// target checks an address to connect to.
func (c *checker) target(key, value string) {
	if host, port, err := net.SplitHostPort(value); err != nil || host == "" || !isPort(port) || port == "0" {
		c.fail(key, fmt.Sprintf("%q", value), "host:port, the port a number from 1 to 65535")
	}
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// Validate names every key whose value cannot be used, its value, and what is allowed. A nil result means that New will
// not fail because of the configuration, but for files that cannot be read.
func (c Config) Validate() error {
	v := &checker{}
	if c.Gateway.ID != "" && (!ident.ValidUID(c.Gateway.ID) || len(c.Gateway.ID) > gatewayIDMax) {
		v.fail("gateway.id", fmt.Sprintf("%q", c.Gateway.ID), fmt.Sprintf("1 to %d characters of A-Z a-z 0-9 _ . @ -", gatewayIDMax))
	}
	if c.Gateway.Advertise != "" {
		v.target("gateway.advertise", c.Gateway.Advertise)
	}
	v.oneOf("engine.name", c.Engine.Name, engineOneshot, engineNetpoll)
	v.between("engine.loops", c.Engine.Loops, 0, loopsMax)
	c.validateListeners(v)
	v.addr("internal.addr", c.Internal.Addr)
	validateTLS(v, "internal.tls", c.Internal.TLS)
	v.duration("internal.push_timeout", c.Internal.PushTimeout, timeoutMin, time.Minute)
	v.addr("admin.addr", c.Admin.Addr)
	c.validateAuth(v)
	c.validateLimits(v)
	c.validateBackpressure(v)
	c.validateRelay(v)
	c.validateRoutes(v)
	v.duration("drain.pre_delay", c.Drain.PreDelay, 0, timeoutMax)
	v.duration("drain.window", c.Drain.Window, 0, timeoutMax)
	v.between("drain.rate", c.Drain.Rate, 0, connectionsMax)
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "json", "text")
	return errors.Join(v.errs...)
}

func (c Config) validateListeners(v *checker) {
	if len(c.Listeners) == 0 || len(c.Listeners) > listenersMax {
		v.fail("listeners", fmt.Sprintf("a list of %d", len(c.Listeners)), fmt.Sprintf("1 to %d", listenersMax))
	}
	names := make(map[string]bool, len(c.Listeners))
	for i, l := range c.Listeners {
		key := fmt.Sprintf("listeners[%d].", i)
		if l.Name == "" || len(l.Name) > 64 || names[l.Name] {
			v.fail(key+"name", fmt.Sprintf("%q", l.Name), "1 to 64 characters, no two alike")
		}
		names[l.Name] = true
		v.oneOf(key+"protocol", l.Protocol, protocolWS, protocolTCP)
		v.addr(key+"addr", l.Addr)
		if l.Protocol == protocolWS && !strings.HasPrefix(l.Path, "/") {
			v.fail(key+"path", fmt.Sprintf("%q", l.Path), "a path that starts with /")
		}
		for j, o := range l.Origins {
			if u, err := url.Parse(o); err != nil || u.Scheme == "" || u.Host == "" || (u.Path != "" && u.Path != "/") {
				v.fail(fmt.Sprintf("%sorigins[%d]", key, j), fmt.Sprintf("%q", o), "scheme://host[:port]")
			}
		}
		validateTLS(v, key+"tls", l.TLS)
		c.validateStages(v, key, l)
	}
}

// validateStages checks what stands before the handler: the PROXY protocol, and compression behind it.
func (c Config) validateStages(v *checker, key string, l Listener) {
	v.oneOf(key+"proxy_protocol", l.ProxyProtocol, "", "off", "optional", "strict")
	for j, p := range l.TrustedProxies {
		if _, err := parsePrefix(p); err != nil {
			v.fail(fmt.Sprintf("%strusted_proxies[%d]", key, j), fmt.Sprintf("%q", p), "an address or a prefix such as 10.0.0.0/8")
		}
	}
	if proxyMode(l.ProxyProtocol) != poller.ProxyOff && len(l.TrustedProxies) == 0 {
		v.fail(key+"trusted_proxies", "[]", "the proxies' addresses, since proxy_protocol is "+l.ProxyProtocol+": a header is believed from them only")
	}
	v.oneOf(key+"compression", l.Compression, "", "off", compressionOn)
	if l.Compression == compressionOn && l.Protocol != protocolWS {
		v.fail(key+"compression", l.Compression, "off, since protocol is "+l.Protocol+": compression is an extension of WebSocket")
	}
	if host, _, err := net.SplitHostPort(l.Addr); err == nil && c.Auth.Mode == authInsecure && !loopback(host) {
		v.fail(key+"addr", fmt.Sprintf("%q", l.Addr), "a loopback address, since auth.mode is insecure")
	}
}

func validateTLS(v *checker, key string, t TLS) {
	if (t.Cert == "") != (t.Key == "") {
		v.fail(key, fmt.Sprintf("{cert: %q, key: %q}", t.Cert, t.Key), "both cert and key, or neither")
	}
	if t.ClientCA != "" && t.Cert == "" {
		v.fail(key+".client_ca", fmt.Sprintf("%q", t.ClientCA), "cert and key beside it")
	}
	for name, file := range map[string]string{"cert": t.Cert, "key": t.Key, "client_ca": t.ClientCA} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			v.fail(key+"."+name, fmt.Sprintf("%q", file), "a file that can be read: "+err.Error())
		}
	}
}

func (c Config) validateAuth(v *checker) {
	v.oneOf("auth.mode", c.Auth.Mode, authJWT, authBackend, authInsecure)
	switch c.Auth.Mode {
	case authBackend:
		v.duration("auth.backend.timeout", c.Auth.Backend.Timeout, timeoutMin, c.Limits.Handshake.Timeout)
		v.between("auth.backend.calls", c.Auth.Backend.Calls, 1, callsMax)
	case authJWT:
		j := c.Auth.JWT
		if j.JWKSURL != "" {
			v.fail("auth.jwt.jwks_url", fmt.Sprintf("%q", j.JWKSURL), "secret or public_key_file; this build fetches no key sets")
		}
		if (j.Secret == "") == (j.PublicKeyFile == "") {
			v.fail("auth.jwt.secret", "(hidden)", "exactly one of secret and public_key_file")
		}
		if j.Secret != "" && len(j.Secret) < secretBytesMin {
			v.fail("auth.jwt.secret", "(hidden)", fmt.Sprintf("at least %d bytes", secretBytesMin))
		}
		if j.PublicKeyFile != "" {
			if _, err := os.Stat(j.PublicKeyFile); err != nil {
				v.fail("auth.jwt.public_key_file", fmt.Sprintf("%q", j.PublicKeyFile), "a file that can be read: "+err.Error())
			}
		}
		if j.UIDClaim == "" {
			v.fail("auth.jwt.uid_claim", `""`, "the name of a claim, for example sub")
		}
	}
}

func (c Config) validateLimits(v *checker) {
	l := c.Limits
	v.between("limits.connections", l.Connections, 1, connectionsMax)
	v.between("limits.accept.per_second", l.Accept.PerSecond, 0, connectionsMax)
	v.between("limits.accept.burst", l.Accept.Burst, 0, connectionsMax)
	v.between("limits.accept.per_ip_per_second", l.Accept.PerIPPerSecond, 0, connectionsMax)
	v.between("limits.accept.per_ip_connections", l.Accept.PerIPConnections, 0, connectionsMax)
	v.duration("limits.handshake.timeout", l.Handshake.Timeout, timeoutMin, timeoutMax)
	v.between("limits.handshake.header_bytes", l.Handshake.HeaderBytes, headerBytesMin, headerBytesMax)
	v.between("limits.frame.bytes", l.Frame.Bytes, frameBytesMin, frameBytesMax)
	v.duration("limits.frame.timeout", l.Frame.Timeout, timeoutMin, timeoutMax)
	v.between("limits.frame.fragments", l.Frame.Fragments, 1, 65535)
	u := l.Uplink
	v.between("limits.uplink.messages_per_second", u.MessagesPerSecond, 1, messagesRateMax)
	v.between("limits.uplink.messages_burst", u.MessagesBurst, 1, messagesBurstMax)
	v.between("limits.uplink.bytes_per_second", u.BytesPerSecond, 1, bytesRateMax)
	v.between("limits.uplink.bytes_burst", u.BytesBurst, 1, bytesRateMax)
	v.oneOf("limits.uplink.mode", u.Mode, modePause, modeReject)
	v.between("limits.errors.count", l.Errors.Count, 0, 10000)
	v.duration("limits.errors.window", l.Errors.Window, timeoutMin, timeoutMax)
}

func (c Config) validateBackpressure(v *checker) {
	b := c.Backpressure
	v.between("backpressure.inflight_frames", b.InflightFrames, 1, inflightMax)
	v.between("backpressure.inflight_bytes", b.InflightBytes, 1, 1<<30)
	v.between("backpressure.outbox_bytes", b.OutboxBytes, 4096, 1<<30)
	v.between("backpressure.sndbuf", b.SendBuffer, 4096, 1<<26)
	v.duration("backpressure.write_timeout", b.WriteTimeout, timeoutMin, timeoutMax)
	v.between("backpressure.relay_queue", b.RelayQueue, 1, 1<<24)
	v.duration("backpressure.park_max", b.ParkMax, timeoutMin, time.Minute)
	if !(b.MemoryHigh > 0 && b.MemoryHigh <= 1) {
		v.fail("backpressure.memory_high", b.MemoryHigh, "more than 0, at most 1")
	}
	if b.OutboxBytes < c.Limits.Frame.Bytes {
		v.fail("backpressure.outbox_bytes", b.OutboxBytes, "at least limits.frame.bytes, so that a largest command fits")
	}
	v.duration("heartbeat.interval", c.Heartbeat.Interval, timeoutMin, timeoutMax)
	v.duration("heartbeat.idle_timeout", c.Heartbeat.IdleTimeout, timeoutMin, timeoutMax)
	if c.Heartbeat.IdleTimeout < c.Heartbeat.Interval*2 {
		v.fail("heartbeat.idle_timeout", c.Heartbeat.IdleTimeout, "at least twice heartbeat.interval, so that one late heartbeat closes nobody")
	}
}

func (c Config) validateRelay(v *checker) {
	if err := c.relay().Validate(); err != nil {
		v.errs = append(v.errs, err)
	}
}

// relay is the relay's own configuration, with what stands elsewhere in the file.
func (c Config) relay() stateclient.Config {
	r := c.Relay
	r.Queue, r.AnswerBytes = c.Backpressure.RelayQueue, c.Limits.Frame.Bytes
	return r
}

func (c Config) validateRoutes(v *checker) {
	r := c.Routes
	if len(r.Redis.Addrs) == 0 {
		v.fail("routes.redis.addrs", "[]", "at least one")
	}
	for i, a := range r.Redis.Addrs {
		v.target(fmt.Sprintf("routes.redis.addrs[%d]", i), a)
	}
	if r.Redis.Mode == "standalone" && len(r.Redis.Addrs) > 1 {
		v.fail("routes.redis.addrs", r.Redis.Addrs, "one address, since the mode is standalone")
	}
	v.oneOf("routes.redis.mode", r.Redis.Mode, "standalone", "sentinel", "cluster")
	if r.Redis.Mode == "sentinel" && r.Redis.Master == "" {
		v.fail("routes.redis.master", `""`, "the master's name, since the mode is sentinel")
	}
	v.duration("routes.lease", r.Lease, time.Second, time.Hour)
	v.duration("routes.audit", r.Audit, time.Second, timeoutMax)
	v.between("routes.devices_max", r.DevicesMax, 1, routes.DevicesMax)
	v.oneOf("routes.policy", r.Policy, "multi", policySingle)
	v.duration("routes.lookup_timeout", r.LookupTimeout, timeoutMin, time.Minute)
	v.oneOf("routes.on_redis_down", r.OnRedisDown, redisReject, redisAccept)
}

// loopback reports whether host can be reached from this machine only.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func parsePrefix(s string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("prefix %q: %w", s, err)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}
