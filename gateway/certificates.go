package gateway

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// certificateLookEvery bounds how often the files are looked at: once a second, at a handshake.
const certificateLookEvery = time.Second

// certificates is the TLS of one port. A certificate that is renewed on disk is used from the next handshake on, and
// nobody who is connected notices: at Reload, and at a handshake at least certificateLookEvery after the last look.
type certificates struct {
	// Fixed after newCertificates.
	files  TLS
	protos []string
	name   string // of the port, for the log
	log    *slog.Logger
	now    func() time.Time

	current atomic.Pointer[tls.Config]
	looked  atomic.Int64 // of now, ns since 1970

	mu sync.Mutex
	// Guarded by mu: what the files looked like when they were last read, well or not.
	seen [3]fileStamp
}

// fileStamp changes when a file does.
type fileStamp struct {
	size     int64
	modified time.Time
}

// newCertificates reads the files. It is nil when files names none. protos are what ALPN offers.
func newCertificates(files TLS, protos []string, name string, log *slog.Logger, now func() time.Time) (*certificates, error) {
	if files.Cert == "" {
		return nil, nil
	}
	c := &certificates{files: files, protos: protos, name: name, log: log, now: now}
	c.looked.Store(now().UnixNano())
	c.seen = c.stamps()
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// config is for the port. Its session tickets outlive the certificates, since crypto/tls takes the keys of this one for
// those that GetConfigForClient returns, and renews them by itself.
func (c *certificates) config() *tls.Config {
	if c == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: c.protos, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c.look()
		return c.current.Load(), nil
	}}
}

// look reads the files again if one has changed, unless somebody has looked just now. A pair of which only one half has
// been replaced yet is refused, and read again once the other half has changed too.
func (c *certificates) look() {
	now, last := c.now().UnixNano(), c.looked.Load()
	if now-last < int64(certificateLookEvery) || !c.looked.CompareAndSwap(last, now) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	stamps := c.stamps()
	if stamps == c.seen {
		return
	}
	c.seen = stamps
	if err := c.read(); err != nil {
		c.log.Error("certificate has changed and cannot be used; the one before stays", "port", c.name, "error", err)
		return
	}
	c.log.Info("certificate has changed, and is used from now on", "port", c.name)
}

// reload reads the files now. With an error, what was in use stays.
func (c *certificates) reload() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = c.stamps()
	return c.read()
}

func (c *certificates) stamps() (s [3]fileStamp) {
	for i, name := range []string{c.files.Cert, c.files.Key, c.files.ClientCA} {
		if info, err := os.Stat(name); err == nil {
			s[i] = fileStamp{info.Size(), info.ModTime()}
		}
	}
	return s
}

// read replaces what handshakes use. c.mu is held, or nobody else has c yet.
func (c *certificates) read() error {
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return err
	}
	next := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: c.protos}
	if c.files.ClientCA != "" {
		if next.ClientCAs, err = loadPool(c.files.ClientCA); err != nil {
			return fmt.Errorf("client_ca: %w", err)
		}
		next.ClientAuth = tls.RequireAndVerifyClientCert
	}
	c.current.Store(next)
	return nil
}
