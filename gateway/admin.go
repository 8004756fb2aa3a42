package gateway

import (
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/poller"
)

const (
	// connectionsListed bounds one answer of /api/v1/connections; ?after= goes on behind it.
	connectionsListed = 1000
	// adminBodyMax bounds a request's body.
	adminBodyMax = 64 << 10
	// adminTimeout bounds reading a request's header; answers may take long (profiles).
	adminTimeout = 10 * time.Second
)

// newAdminServer serves probes, metrics, profiles and the JSON interface.
func newAdminServer(g *Gateway) *http.Server {
	open, closed := http.NewServeMux(), http.NewServeMux()
	open.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	open.HandleFunc("GET /readyz", g.readyz)
	closed.Handle("GET /metrics", promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{}))
	closed.HandleFunc("/debug/pprof/", pprof.Index)
	closed.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	closed.HandleFunc("/debug/pprof/profile", pprof.Profile)
	closed.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	closed.HandleFunc("/debug/pprof/trace", pprof.Trace)
	closed.HandleFunc("GET /api/v1/status", g.adminStatus)
	closed.HandleFunc("GET /api/v1/connections", g.adminConnections)
	closed.HandleFunc("GET /api/v1/connections/{id}", g.adminConnection)
	closed.HandleFunc("GET /api/v1/online/{uid}", g.adminOnline)
	closed.HandleFunc("POST /api/v1/kick", g.adminKick)
	closed.HandleFunc("POST /api/v1/drain", g.adminDrain)
	closed.HandleFunc("POST /api/v1/undrain", g.adminUndrain)
	open.Handle("/", withToken(g.cfg.Admin.Token, closed))
	return &http.Server{Handler: http.MaxBytesHandler(open, adminBodyMax), ReadHeaderTimeout: adminTimeout}
}

// withToken asks for the bearer token; an empty token asks for nothing.
func withToken(token string, next http.Handler) http.Handler {
	want := []byte("Bearer " + token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			answer(w, http.StatusUnauthorized, map[string]string{"error": "the token of admin.token is needed"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client is gone; nobody to tell
}

// Ready names what is missing; empty = clients can be sent here.
func (g *Gateway) Ready() []string {
	missing := []string{}
	if !g.lease.Healthy() {
		missing = append(missing, "redis")
	}
	if !g.relay.Ready() {
		missing = append(missing, "backends")
	}
	if g.draining.Load() {
		missing = append(missing, "draining")
	}
	if g.overloaded.Load() {
		missing = append(missing, "overloaded")
	}
	return missing
}

func (g *Gateway) readyz(w http.ResponseWriter, _ *http.Request) {
	missing := g.Ready()
	code := http.StatusOK
	if len(missing) > 0 {
		code = http.StatusServiceUnavailable
	}
	answer(w, code, map[string]any{"ready": len(missing) == 0, "missing": missing})
}

func (g *Gateway) adminStatus(w http.ResponseWriter, _ *http.Request) {
	sum := g.books()
	ends := make(map[string]uint64, results)
	for r := range results {
		ends[resultNames[r]] = sum.results[r]
	}
	addrs := make(map[string]string, len(g.listeners))
	for i := range g.listeners {
		addrs[g.listeners[i].Name] = g.listeners[i].bound
	}
	answer(w, http.StatusOK, map[string]any{
		"incarnation": g.incarnation, "advertise": g.advertise, "zone": g.cfg.Gateway.Zone, "build": g.build,
		"since": g.since, "missing": g.Ready(), "listeners": addrs,
		"connections": map[string]int64{"open": g.gauges.open(), "live": g.gauges.live()},
		"uplinks":     map[string]any{"received": sum.received, "inflight": sum.inflight, "results": ends},
	})
}

// connectionInfo is one connection as the admin port shows it.
type connectionInfo struct {
	ConnID   string    `json:"conn_id"`
	Listener string    `json:"listener"`
	State    string    `json:"state"`
	UID      string    `json:"uid,omitempty"`
	DeviceID string    `json:"device_id,omitempty"`
	Platform string    `json:"platform,omitempty"`
	Remote   string    `json:"remote"`
	Epoch    int64     `json:"epoch,omitempty"`
	Since    time.Time `json:"since"`
	Uplinks  uint64    `json:"uplinks"`
	Inflight int       `json:"inflight"`
	Parked   []string  `json:"parked,omitempty"`
}

// info describes a connection. p.mu is held.
func (g *Gateway) info(p *peer) connectionInfo {
	c := connectionInfo{ConnID: strconv.FormatUint(uint64(p.id), 10), Listener: g.listeners[p.listener].Name,
		State: stateNames[p.session.state], Remote: p.remote(), Since: time.UnixMilli(p.since),
		Uplinks: p.session.seq, Inflight: int(p.session.inflight)}
	if p.who != nil {
		c.UID, c.DeviceID, c.Platform, c.Epoch = p.who.UID, p.who.DeviceID, p.who.Platform, p.epoch()
	}
	if p.parked {
		for i, name := range holdNames {
			if p.session.held&(1<<i) != 0 {
				c.Parked = append(c.Parked, name)
			}
		}
	}
	return c
}

// adminConnections lists up to connectionsListed connections behind ?after=CONN_ID, by place in memory, optionally only
// those of ?uid=.
func (g *Gateway) adminConnections(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	uid := r.URL.Query().Get("uid")
	list := []connectionInfo{}
	g.peers.each(func(slot uint32, p *peer) bool {
		if after != 0 && slot <= poller.ID(after).Slot() {
			return true
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.id != 0 && (uid == "" || p.who != nil && p.who.UID == uid) {
			list = append(list, g.info(p))
		}
		return len(list) < connectionsListed
	})
	answer(w, http.StatusOK, map[string]any{"connections": list, "more": len(list) == connectionsListed})
}

func (g *Gateway) adminConnection(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	p := g.peers.locked(poller.ID(id))
	if err != nil || p == nil {
		if p != nil {
			p.mu.Unlock()
		}
		answer(w, http.StatusNotFound, map[string]string{"error": "no such connection"})
		return
	}
	info := g.info(p)
	p.mu.Unlock()
	answer(w, http.StatusOK, info)
}

// adminOnline asks the route table, so that it sees all gateways.
func (g *Gateway) adminOnline(w http.ResponseWriter, r *http.Request) {
	uid := r.PathValue("uid")
	if !ident.ValidUID(uid) {
		answer(w, http.StatusBadRequest, map[string]string{"error": "not a user id"})
		return
	}
	found, err := g.routes.table.Find(r.Context(), []string{uid})
	if err != nil {
		answer(w, http.StatusServiceUnavailable, map[string]string{"error": "unknown: the route table does not answer"})
		return
	}
	type device struct {
		DeviceID    string    `json:"device_id"`
		Incarnation string    `json:"incarnation"`
		ConnID      string    `json:"conn_id"`
		Platform    string    `json:"platform,omitempty"`
		Since       time.Time `json:"since"`
	}
	devices := []device{}
	for _, at := range found[uid] {
		devices = append(devices, device{at.DeviceID, at.Incarnation, strconv.FormatUint(at.ConnID, 10), at.Platform, at.Since})
	}
	answer(w, http.StatusOK, map[string]any{"uid": uid, "online": len(devices) > 0, "devices": devices})
}

// adminKick closes connections of this gateway: one by conn_id, or all of a uid, or of one of its devices.
func (g *Gateway) adminKick(w http.ResponseWriter, r *http.Request) {
	var req struct {
		ConnID   string `json:"conn_id"`
		UID      string `json:"uid"`
		DeviceID string `json:"device_id"`
	}
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&req); err != nil || req.ConnID == "" && req.UID == "" {
		answer(w, http.StatusBadRequest, map[string]string{"error": `want {"conn_id": "..."} or {"uid": "...", "device_id": "..."}`})
		return
	}
	var targets []*gatewayv1.Target
	g.peers.each(func(_ uint32, p *peer) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.who == nil || req.ConnID != "" && strconv.FormatUint(uint64(p.id), 10) != req.ConnID ||
			req.UID != "" && p.who.UID != req.UID || req.DeviceID != "" && p.who.DeviceID != req.DeviceID {
			return true
		}
		targets = append(targets, &gatewayv1.Target{ConnId: uint64(p.id), Uid: p.who.UID, DeviceId: p.who.DeviceID, Epoch: p.epoch()})
		return true
	})
	kicked := 0
	for _, t := range targets {
		if g.displace(t, reason.Kicked, "", "") {
			kicked++
		}
	}
	answer(w, http.StatusOK, map[string]int{"kicked": kicked})
}

func (g *Gateway) adminDrain(w http.ResponseWriter, _ *http.Request) {
	g.draining.Store(true)
	answer(w, http.StatusOK, map[string]any{"draining": true})
}

func (g *Gateway) adminUndrain(w http.ResponseWriter, _ *http.Request) {
	if g.ending.Load() {
		answer(w, http.StatusConflict, map[string]string{"error": "the gateway is about to end"})
		return
	}
	g.draining.Store(false)
	answer(w, http.StatusOK, map[string]any{"draining": false})
}
