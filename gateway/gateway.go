// Package gateway is the product: it holds client connections on a poller, cuts their bytes into commands with a codec,
// decides with a session what each of them deserves, and relays them to the logic tier.
//
// The way of a message up stands in handler.go, the way of its answer in answers.go, the way of a login in login.go. What
// is decided without I/O is in session.go and settle.go; everything else is the shell around it.
package gateway

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/netpoll"
	"github.com/sluice-im/sluice/stateclient"
)

// Deps are the parts of the process that a gateway uses. The zero value of each is the real thing.
type Deps struct {
	// Log takes everything; nil = nothing is logged.
	Log *slog.Logger
	// Registry takes the metrics; nil = a new one, with those of the process and the runtime.
	Registry *prometheus.Registry
	// Build is the version that the lease and the status tell.
	Build string
	// Now is the wall clock, with its monotonic part.
	Now func() time.Time

	// Engine starts the engine for a handler.
	Engine func(c poller.Config, h poller.Handler, log *slog.Logger) (poller.Engine, error)
	// Relay starts the relay for a sink.
	Relay func(c stateclient.Config, s stateclient.Sink, d stateclient.Deps) (stateclient.Relay, error)
	// Routes opens the route table and its lease; close ends what they hold.
	Routes func(o RouteOptions) (table RouteTable, lease RouteLease, close func(), err error)
}

// RouteOptions is what a route table has to know of its gateway.
type RouteOptions struct {
	Config      Routes
	Incarnation string
	Addr        string
	Build, Zone string
	// OnLost is called when all routes have to be written again; it returns at once.
	OnLost func()
	Log    *slog.Logger
}

// listener is one address for clients, as the handler needs it.
type listener struct {
	Listener
	websocket bool
	upgrade   codec.UpgradeOptions
	// certificates is nil without TLS.
	certificates *certificates
	// proxies are trusted to say for whom they speak.
	proxies []netip.Prefix
	// bound is the address that it listens on; set by start.
	bound string
}

// Gateway is one gateway. Make it with New, and run it once.
type Gateway struct {
	// Fixed after New.
	cfg         Config
	deps        Deps
	log         *slog.Logger
	build       string
	incarnation string
	auth        authenticator
	rules       rules
	frameLimits codec.Limits
	loginLimits codec.Limits // before login
	listeners   []listener
	internalTLS *certificates
	registry    *prometheus.Registry
	now         func() time.Time
	// base is the zero of the gateway's own clock: shortly before it was made, since 0 stands for "not set".
	base  time.Time
	peers *peers
	// addresses are those of clients behind trusted proxies.
	addresses *addresses
	lanes     []lane
	pacer     *pacer
	courier   *courier
	journal   *journal
	gauges    *gauges
	counters  counters
	since     time.Time
	started   chan struct{}

	// Fixed after start.
	advertise  string
	internalAt string
	adminAt    string
	engine     poller.Engine
	conns      poller.Conns
	relay      stateclient.Relay
	routes     *routing
	lease      RouteLease
	neighbours *neighbours

	verifying *gather[*login]
	claiming  *gather[*login]
	kicks     *gather[kick]
	unkicked  *gather[kick]
	// sends holds a place for every chunk of a Send in work, broadcasts one for the Broadcast in work.
	sends, broadcasts chan struct{}
	pools             uplinkPools
	outgoing          sync.Pool

	// draining: clients are sent elsewhere. ending: there is no way back.
	draining, ending atomic.Bool
	// overloaded: the memory is nearly used up, so nobody is let in.
	overloaded atomic.Bool
	// unrouted: connections were let in while Redis was away, and have no route yet.
	unrouted atomic.Bool
	// connectless: the logic tier has no Connect method, as was logged.
	connectless atomic.Bool
	overridesMu sync.Mutex
	// Guarded by overridesMu.
	overrides map[stateclient.Limits]*rules
	// farewells are disconnects that the relay has not answered yet.
	farewells atomic.Int64

	running atomic.Bool
	closers []func() // what start has started, in its order
}

// New makes a gateway that nobody can reach yet: nothing is opened or started before Run. An error is a bad
// configuration, or a key file that cannot be used.
func New(cfg Config, deps Deps) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	deps = deps.withDefaults(cfg.Engine.Name)
	auth, err := newAuthenticator(cfg.Auth, deps.Now)
	if err != nil {
		return nil, err
	}
	id, err := gatewayID(cfg.Gateway.ID)
	if err != nil {
		return nil, err
	}
	if cfg.Engine.Loops == 0 {
		cfg.Engine.Loops = runtime.GOMAXPROCS(0)
	}
	g := &Gateway{
		cfg: cfg, deps: deps, log: deps.Log, build: deps.Build, auth: auth,
		incarnation: id + "-" + rand.Text()[:13], // 65 random bits
		rules:       newRules(&cfg),
		frameLimits: codec.Limits{FrameBytes: cfg.Limits.Frame.Bytes, Fragments: cfg.Limits.Frame.Fragments},
		loginLimits: codec.Limits{FrameBytes: min(cfg.Limits.Frame.Bytes, loginBytesMax), Fragments: cfg.Limits.Frame.Fragments},
		registry:    deps.Registry, now: deps.Now, base: deps.Now().Add(-time.Second),
		peers:     newPeers(cfg.Limits.Connections),
		addresses: newAddresses(cfg.Limits.Accept),
		lanes:     make([]lane, cfg.Engine.Loops),
		courier:   newCourier(cfg.Engine.Loops, cfg.Backpressure.RelayQueue),
		journal:   newJournal(deps.Log),
		gauges:    newGauges(len(cfg.Listeners)),
		verifying: newGather[*login](cfg.Limits.Connections),
		claiming:  newGather[*login](cfg.Limits.Connections),
		kicks:     newGather[kick](kicksMax),
		overrides: make(map[stateclient.Limits]*rules),
		unkicked:  newGather[kick](kicksMax),
		sends:     make(chan struct{}, sendChunksMax), broadcasts: make(chan struct{}, 1),
		started: make(chan struct{}),
		since:   deps.Now(),
	}
	g.pacer = newPacer(g.clock)
	if g.internalTLS, err = newCertificates(cfg.Internal.TLS, []string{"h2"}, "internal", g.log, g.now); err != nil {
		return nil, fmt.Errorf("internal.tls: %w", err)
	}
	for i, l := range cfg.Listeners {
		if err := g.addListener(l); err != nil {
			return nil, fmt.Errorf("listeners[%d].%w", i, err)
		}
	}
	return g, nil
}

func (g *Gateway) addListener(l Listener) error {
	at := listener{Listener: l, websocket: l.Protocol == protocolWS,
		upgrade: codec.UpgradeOptions{Path: l.Path, Origins: l.Origins, HeaderBytes: g.cfg.Limits.Handshake.HeaderBytes,
			TokenInQuery: l.TokenInQuery, Deflate: l.Compression == compressionOn}}
	var protos []string
	if at.websocket {
		protos = []string{"http/1.1"}
	}
	var err error
	if at.certificates, err = newCertificates(l.TLS, protos, l.Name, g.log, g.now); err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	for _, p := range l.TrustedProxies {
		prefix, err := parsePrefix(p)
		if err != nil {
			return fmt.Errorf("trusted_proxies: %w", err)
		}
		at.proxies = append(at.proxies, prefix)
	}
	g.listeners = append(g.listeners, at)
	return nil
}

// Reload reads the certificates of all ports again, without dropping anybody: each is used from the next handshake on.
// The error names those that could not be read; what they replace stays in use. Any goroutine may call it.
func (g *Gateway) Reload() error {
	var errs []error
	if err := g.internalTLS.reload(); err != nil {
		errs = append(errs, fmt.Errorf("internal.tls: %w", err))
	}
	for i := range g.listeners {
		if err := g.listeners[i].certificates.reload(); err != nil {
			errs = append(errs, fmt.Errorf("listeners[%d].tls: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

func (d Deps) withDefaults(engine string) Deps {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Engine == nil {
		d.Engine = engines[engine]
	}
	if d.Relay == nil {
		d.Relay = stateclient.New
	}
	if d.Routes == nil {
		d.Routes = openRoutes
	}
	if d.Registry == nil {
		d.Registry = prometheus.NewRegistry()
		d.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	return d
}

// engines are the pollers that engine.name can choose.
var engines = map[string]func(poller.Config, poller.Handler, *slog.Logger) (poller.Engine, error){
	engineOneshot: poller.New,
	engineNetpoll: netpoll.New,
}

// gatewayID is the configured id, or the host's name as far as it is made of the alphabet of ids.
func gatewayID(configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("gateway.id is empty, and the host has no name: %w", err)
	}
	id := make([]byte, 0, len(host))
	for i := range min(len(host), gatewayIDMax) {
		c := host[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' {
			id = append(id, c)
		}
	}
	if len(id) == 0 {
		return "", errors.New("gateway.id is empty, and the host has no usable name")
	}
	return string(id), nil
}

// clock is the gateway's own monotonic clock; it is never 0.
func (g *Gateway) clock() time.Duration { return g.now().Sub(g.base) }

// Incarnation names this run of this gateway: no other has the same.
func (g *Gateway) Incarnation() string { return g.incarnation }

// Started is closed once every port is open.
func (g *Gateway) Started() <-chan struct{} { return g.started }

// Addr is the address that a listener is bound to, by the listener's name, or "internal" or "admin". It is empty for a
// name that there is not, and before Started.
func (g *Gateway) Addr(name string) string {
	select {
	case <-g.started:
	default:
		return ""
	}
	switch name {
	case "internal":
		return g.internalAt
	case "admin":
		return g.adminAt
	}
	for i := range g.listeners {
		if g.listeners[i].Name == name {
			return g.listeners[i].bound
		}
	}
	return ""
}

// advertised is where others reach the internal port: as configured, or the address it is bound to, with the host's name
// in place of "any address".
func (g *Gateway) advertised(bound net.Addr) string {
	if g.cfg.Gateway.Advertise != "" {
		return g.cfg.Gateway.Advertise
	}
	at, err := netip.ParseAddrPort(bound.String())
	if err != nil || !at.Addr().IsUnspecified() {
		return bound.String()
	}
	host, err := os.Hostname()
	if err != nil {
		return bound.String()
	}
	return net.JoinHostPort(host, fmt.Sprint(at.Port()))
}
