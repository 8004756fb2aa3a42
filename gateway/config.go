package gateway

import (
	"time"

	"github.com/sluice-im/sluice/stateclient"
)

// Config is everything an operator can set (design: operations, "Gateway configuration"). It is plain data: files,
// environment and flags are read by the command.
type Config struct {
	Gateway      Identity     `koanf:"gateway"`
	Engine       Engine       `koanf:"engine"`
	Listeners    []Listener   `koanf:"listeners"`
	Internal     Internal     `koanf:"internal"`
	Admin        Admin        `koanf:"admin"`
	Auth         Auth         `koanf:"auth"`
	Limits       Limits       `koanf:"limits"`
	Backpressure Backpressure `koanf:"backpressure"`
	Heartbeat    Heartbeat    `koanf:"heartbeat"`
	// Relay is the way to the logic tier; its queue is backpressure.relay_queue.
	Relay  stateclient.Config `koanf:"relay"`
	Routes Routes             `koanf:"routes"`
	Drain  Drain              `koanf:"drain"`
	Log    Log                `koanf:"log"`
}

// Identity says who this gateway is.
type Identity struct {
	// ID is the stable part of the incarnation's name; empty = the host's name.
	ID string `koanf:"id"`
	// Advertise is the address at which others reach the internal port; empty = the address that it listens on.
	Advertise string `koanf:"advertise"`
	Zone      string `koanf:"zone"`
}

// Engine chooses the poller.
type Engine struct {
	// Name is oneshot or netpoll.
	Name string `koanf:"name"`
	// Loops is the number of loops; 0 = one a core.
	Loops int `koanf:"loops"`
}

// Listener is one address for clients.
type Listener struct {
	// Name is its label in metrics and logs.
	Name string `koanf:"name"`
	// Protocol is ws or tcp.
	Protocol string `koanf:"protocol"`
	Addr     string `koanf:"addr"`
	// Path is the only request path that is upgraded (ws).
	Path string `koanf:"path"`
	// Origins are the browser origins that may connect (ws); empty = all.
	Origins []string `koanf:"origins"`
	// TokenInQuery admits ?token=T at the upgrade (ws). Off by default, since URLs get logged on their way.
	TokenInQuery bool `koanf:"token_in_query"`
	TLS          TLS  `koanf:"tls"`
	// ProxyProtocol is off, optional or strict.
	ProxyProtocol  string   `koanf:"proxy_protocol"`
	TrustedProxies []string `koanf:"trusted_proxies"`
	// Compression is off or on (ws).
	Compression string `koanf:"compression"`
}

// TLS names PEM files. Empty = no TLS.
type TLS struct {
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
	// ClientCA, when set, asks every peer for a certificate that it signed.
	ClientCA string `koanf:"client_ca"`
}

// Internal is the port for Send, Push, Kick and Broadcast.
type Internal struct {
	Addr string `koanf:"addr"`
	// Token, when set, is asked for as "authorization: Bearer ..." metadata.
	Token string `koanf:"token"`
	TLS   TLS    `koanf:"tls"`
	// PushTimeout is how long a Send waits for the answer of another gateway.
	PushTimeout time.Duration `koanf:"push_timeout"`
}

// Admin is the port for probes, metrics and administration.
type Admin struct {
	Addr string `koanf:"addr"`
	// Token, when set, is asked for by everything but the two probes.
	Token string `koanf:"token"`
}

// Auth says how a login is checked.
type Auth struct {
	// Mode is jwt, backend or insecure.
	Mode    string      `koanf:"mode"`
	JWT     JWT         `koanf:"jwt"`
	Backend AuthBackend `koanf:"backend"`
}

// AuthBackend bounds what mode backend asks of the logic tier.
type AuthBackend struct {
	// Timeout runs from the login to the answer, and ends before limits.handshake.timeout.
	Timeout time.Duration `koanf:"timeout"`
	// Calls is how many logins are asked for at once; the others wait.
	Calls int `koanf:"calls"`
}

// JWT names the key and what a token must say. Exactly one of Secret and PublicKeyFile is set.
type JWT struct {
	Secret        string `koanf:"secret"`
	PublicKeyFile string `koanf:"public_key_file"`
	JWKSURL       string `koanf:"jwks_url"`
	Issuer        string `koanf:"issuer"`
	Audience      string `koanf:"audience"`
	UIDClaim      string `koanf:"uid_claim"`
}

// Limits protects the gateway and the logic tier from clients.
type Limits struct {
	// Connections bounds open connections; clamped to the descriptor limit less a reserve.
	Connections int         `koanf:"connections"`
	Accept      Accept      `koanf:"accept"`
	Handshake   Handshake   `koanf:"handshake"`
	Frame       Frame       `koanf:"frame"`
	Uplink      UplinkLimit `koanf:"uplink"`
	Errors      Errors      `koanf:"errors"`
}

// Accept limits new connections; 0 = no limit.
type Accept struct {
	PerSecond        int `koanf:"per_second"`
	Burst            int `koanf:"burst"`
	PerIPPerSecond   int `koanf:"per_ip_per_second"`
	PerIPConnections int `koanf:"per_ip_connections"`
}

// Handshake bounds what happens before the login is done.
type Handshake struct {
	// Timeout runs from accept to the end of the login.
	Timeout     time.Duration `koanf:"timeout"`
	HeaderBytes int           `koanf:"header_bytes"`
}

// Frame bounds one command.
type Frame struct {
	Bytes int `koanf:"bytes"`
	// Timeout runs from the first to the last byte of one command.
	Timeout   time.Duration `koanf:"timeout"`
	Fragments int           `koanf:"fragments"`
}

// UplinkLimit is the rate of one connection. Every frame is charged, control frames too.
type UplinkLimit struct {
	MessagesPerSecond int `koanf:"messages_per_second"`
	MessagesBurst     int `koanf:"messages_burst"`
	BytesPerSecond    int `koanf:"bytes_per_second"`
	BytesBurst        int `koanf:"bytes_burst"`
	// Mode is pause or reject.
	Mode string `koanf:"mode"`
	// DryRun counts what would be limited, and limits nothing.
	DryRun bool `koanf:"dry_run"`
}

// Errors is the error budget of one connection.
type Errors struct {
	Count  int           `koanf:"count"`
	Window time.Duration `koanf:"window"`
}

// Backpressure bounds what one connection, and the queue to the logic tier, may hold.
type Backpressure struct {
	InflightFrames int           `koanf:"inflight_frames"`
	InflightBytes  int           `koanf:"inflight_bytes"`
	OutboxBytes    int           `koanf:"outbox_bytes"`
	SendBuffer     int           `koanf:"sndbuf"`
	WriteTimeout   time.Duration `koanf:"write_timeout"`
	RelayQueue     int           `koanf:"relay_queue"`
	// ParkMax is how long a connection waits for the queue before its frames are answered RETRY.
	ParkMax time.Duration `koanf:"park_max"`
	// MemoryHigh is the share of the memory limit (GOMEMLIMIT) above which new connections are refused.
	MemoryHigh float64 `koanf:"memory_high"`
}

// Heartbeat is told to clients; a connection that is silent for IdleTimeout is closed.
type Heartbeat struct {
	Interval    time.Duration `koanf:"interval"`
	IdleTimeout time.Duration `koanf:"idle_timeout"`
}

// Routes is the route table.
type Routes struct {
	Redis      Redis         `koanf:"redis"`
	Lease      time.Duration `koanf:"lease"`
	Audit      time.Duration `koanf:"audit"`
	DevicesMax int           `koanf:"devices_max"`
	// Policy is multi or single.
	Policy string `koanf:"policy"`
	// OnRedisDown is reject or accept.
	OnRedisDown string `koanf:"on_redis_down"`
	// LookupTimeout bounds each lookup of a Send.
	LookupTimeout time.Duration `koanf:"lookup_timeout"`
}

// Redis says where Redis is.
type Redis struct {
	Addrs []string `koanf:"addrs"`
	// Mode is standalone, sentinel or cluster.
	Mode string `koanf:"mode"`
	// Master is the name of the master that the sentinels know (mode sentinel).
	Master   string `koanf:"master"`
	Username string `koanf:"username"`
	Password string `koanf:"password"`
}

// Drain paces the closes of a gateway that is told to end.
type Drain struct {
	// PreDelay is how long it goes on, not ready, so that balancers look elsewhere before it stops accepting.
	PreDelay time.Duration `koanf:"pre_delay"`
	Window   time.Duration `koanf:"window"`
	// Rate is closes per second; 0 = spread over Window.
	Rate int `koanf:"rate"`
}

// Log says how much is logged and in which form.
type Log struct {
	Level  string `koanf:"level"`
	Format string `koanf:"format"`
}

// Default is the configuration of a gateway that was told nothing. It has no key for tokens, so Validate asks for one.
func Default() Config {
	return Config{
		Engine: Engine{Name: engineOneshot},
		Listeners: []Listener{
			{Name: "ws", Protocol: protocolWS, Addr: ":8080", Path: "/ws", ProxyProtocol: "off", Compression: "off"},
			{Name: "tcp", Protocol: protocolTCP, Addr: ":8081", ProxyProtocol: "off", Compression: "off"},
		},
		Internal: Internal{Addr: "127.0.0.1:9090", PushTimeout: 200 * time.Millisecond},
		Admin:    Admin{Addr: "127.0.0.1:9091"},
		Auth:     Auth{Mode: authJWT, JWT: JWT{UIDClaim: "sub"}, Backend: AuthBackend{Timeout: 3 * time.Second, Calls: 256}},
		Limits: Limits{
			Connections: 1_000_000,
			Accept:      Accept{PerSecond: 2000, Burst: 1000},
			Handshake:   Handshake{Timeout: 5 * time.Second, HeaderBytes: 8192},
			Frame:       Frame{Bytes: 65536, Timeout: 10 * time.Second, Fragments: 1024},
			Uplink: UplinkLimit{MessagesPerSecond: 50, MessagesBurst: 100, BytesPerSecond: 262144, BytesBurst: 524288,
				Mode: modePause},
			Errors: Errors{Count: 8, Window: time.Minute},
		},
		Backpressure: Backpressure{InflightFrames: 32, InflightBytes: 65536, OutboxBytes: 262144, SendBuffer: 65536,
			WriteTimeout: 10 * time.Second, RelayQueue: 65536, ParkMax: time.Second, MemoryHigh: 0.85},
		Heartbeat: Heartbeat{Interval: 30 * time.Second, IdleTimeout: 75 * time.Second},
		Relay:     stateclient.Default(),
		Routes: Routes{Redis: Redis{Addrs: []string{"127.0.0.1:6379"}, Mode: "standalone"}, Lease: 15 * time.Second,
			Audit: 10 * time.Minute, DevicesMax: 16, Policy: "multi", OnRedisDown: "reject", LookupTimeout: 50 * time.Millisecond},
		Drain: Drain{PreDelay: 5 * time.Second, Window: time.Minute},
		Log:   Log{Level: "info", Format: "json"},
	}
}

// Words that the configuration uses; what each key allows stands in Validate.
const (
	engineOneshot = "oneshot"
	engineNetpoll = "netpoll"
	compressionOn = "on"
	protocolWS    = "ws"
	protocolTCP   = "tcp"
	authJWT       = "jwt"
	authInsecure  = "insecure"
	authBackend   = "backend"
	modePause     = "pause"
	modeReject    = "reject"
	redisAccept   = "accept"
	redisReject   = "reject"
	policySingle  = "single"
)
