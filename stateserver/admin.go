package stateserver

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// adminTimeout bounds reading one request; adminStop bounds waiting for the last answers.
	adminTimeout = 5 * time.Second
	adminStop    = time.Second
	// probeTimeout bounds asking Redis for a probe.
	probeTimeout = 200 * time.Millisecond
)

func (s *Server) serveAdmin(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if missing := s.missing(r.Context()); len(missing) > 0 {
			http.Error(w, strings.Join(missing, " "), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", s.guarded(promhttp.HandlerFor(s.deps.Registry, promhttp.HandlerOpts{})))
	for path, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.Handle(path, s.guarded(h))
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: adminTimeout, ReadTimeout: adminTimeout, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminStop)
		defer cancel()
		if srv.Shutdown(end) != nil {
			_ = srv.Close()
		}
	})
	defer stop()
	if err := srv.Serve(s.admin); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin port: %w", err)
	}
	return nil
}

func (s *Server) guarded(h http.Handler) http.Handler {
	if s.cfg.Admin.Token == "" {
		return h
	}
	want := []byte("Bearer " + s.cfg.Admin.Token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "bearer token missing or wrong", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// missing names what keeps the server from its work.
func (s *Server) missing(ctx context.Context) []string {
	var out []string
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := s.redis.Ping(ctx).Err(); err != nil {
		out = append(out, "redis")
	}
	// Without the store the lease is not renewed.
	if !s.node.Valid() {
		out = append(out, "store")
	}
	if s.draining.Load() {
		out = append(out, "draining")
	}
	return out
}
