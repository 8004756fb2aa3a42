package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/sluice-im/sluice/cmd/internal/program"
	"github.com/sluice-im/sluice/web/sample"
)

// pageTimeout bounds a request, and the end of the server: the page is three small files.
const pageTimeout = 5 * time.Second

// listenPage takes the sample page's address, before anything else starts: only loopback, since the page has tokens in it.
// It returns nil for "off".
func listenPage(ctx context.Context, addr string) (net.Listener, error) {
	if addr == "off" {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if ip, bad := netip.ParseAddr(host); err != nil || host != "localhost" && (bad != nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%w: --page is %q: an address of this machine (127.0.0.1:PORT), since whoever opens the page is alice and bob; or off",
			program.ErrUsage, addr)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("the sample page: %w", err)
	}
	return l, nil
}

// servePage serves the sample page on l until ctx ends.
func servePage(ctx context.Context, l net.Listener, s sample.Session) error {
	srv := &http.Server{Handler: sample.Handler(s), ReadTimeout: pageTimeout, WriteTimeout: pageTimeout, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10} // a browser's headers are a tenth of it
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTimeout)
		defer cancel()
		_ = srv.Shutdown(last) // what is still open then ends with the process
	})
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("the sample page: %w", err)
	}
	<-ended
	return nil
}

// reachable is the address at which clients on this machine reach a listener: one on all addresses is also on loopback.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip, bad := netip.ParseAddr(host); err != nil || bad != nil || !ip.IsUnspecified() {
		return addr
	}
	return net.JoinHostPort("127.0.0.1", port)
}
