package conformance

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// certificate makes a self-signed one.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// secure adds a TLS listener and makes it the one that dial uses.
func (f *fixture) secure() {
	f.Helper()
	f.addr = f.listen(poller.Listener{Index: 1, TLS: &tls.Config{Certificates: []tls.Certificate{certificate(f.T)}, MinVersion: tls.VersionTLS12}})
}

// handshake does the client's part over conn.
func (f *fixture) handshake(conn net.Conn, version uint16) *tls.Conn {
	f.Helper()
	c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version})
	if err := c.Handshake(); err != nil {
		f.Fatalf("handshake: %v", err)
	}
	return c
}

// dripping writes byte by byte.
type dripping struct{ net.Conn }

func (d dripping) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := d.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

var versions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// testTLSEcho shows that TLS changes nothing for the handler: sizes from one byte to many records, in one write or in
// single bytes, and a clean end.
func testTLSEcho(t *testing.T, newEngine NewEngine) {
	infos := make(chan poller.Info, 1)
	h := &handler{open: func(_ poller.Conn, info poller.Info, _ time.Duration) poller.Verdict {
		infos <- info
		return poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{OutboxBytes: 4 << 20}, h)
	f.secure()
	for name, version := range versions {
		c := f.handshake(f.dial(), version)
		if info := <-infos; !info.TLS || info.Listener != 1 {
			t.Errorf("TLS %s: info %+v", name, info)
		}
		for _, n := range []int{1, 100, 16 << 10, 16<<10 + 1, 300_000} {
			want := bytes.Repeat([]byte{byte(n)}, n)
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = c.Write(want) })
			if got := f.read(c, n); !bytes.Equal(got, want) {
				t.Errorf("TLS %s: echo of %d bytes differs", name, n)
			}
			wg.Wait()
		}
		_ = c.CloseWrite()
		if rest := f.readAll(c); len(rest) > 0 {
			t.Errorf("TLS %s: %d bytes after the end", name, len(rest))
		}

		slow := f.handshake(dripping{f.dial()}, version)
		<-infos
		want := numbers(0, 100)
		f.write(slow, want)
		if got := f.read(slow, len(want)); !bytes.Equal(got, want) {
			t.Errorf("TLS %s: echo of dripped bytes differs", name)
		}
		_ = slow.Close()
	}
	f.eventually("clean ends are named", func() bool { return h.count(poller.CausePeerClosed) == 4 })
}

// testTLSHidden lets the handler take one byte a lease while much more than that is in the TLS layer already, which the
// kernel does not announce.
func testTLSHidden(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 1)
	f := start(t, newEngine, poller.Config{ReadBytes: 300}, stepper(ids))
	f.secure()
	for _, version := range versions {
		c := f.handshake(f.dial(), version)
		id := <-ids
		want := numbers(0, 1000)
		f.write(c, want)
		stop := f.wakeOften(id)
		if got := f.read(c, len(want)); !bytes.Equal(got, want) {
			t.Error("echo differs")
		}
		stop()
	}
}

// testTLSHeld lets the handler take a few bytes a lease and park, while the client has sent far more than may be left
// over: what it was not asked for stays with the kernel, and everything comes in order.
func testTLSHeld(t *testing.T, newEngine NewEngine) { held(t, newEngine, 400_000) }

func held(t *testing.T, newEngine NewEngine, bytesSent int) {
	ids := make(chan poller.ID, 1)
	h := stepper(ids)
	h.data = func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		n := min(len(in.Bytes), 500)
		c.Queue(in.Bytes[:n])
		return n, poller.Park
	}
	f := start(t, newEngine, poller.Config{}, h)
	f.secure()
	for _, version := range versions {
		c := f.handshake(f.dial(), version)
		id := <-ids
		want := numbers(0, bytesSent/4)
		written := make(chan error, 1)
		go func() { _, err := c.Write(want); written <- err }()
		stop := f.wakeOften(id)
		if got := f.read(c, len(want)); !bytes.Equal(got, want) {
			t.Error("echo differs")
		}
		stop()
		if err := <-written; err != nil {
			t.Error(err)
		}
	}
}

// wakeOften wakes a connection over and over again, until the function that it returns is called.
func (f *fixture) wakeOften(id poller.ID) func() {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				f.Conns().Wake(id)
				pauseShort()
			}
		}
	}()
	return func() { close(stop); <-done }
}

// testTLSFirst sends the first request together with the end of the handshake, and reads nothing before.
func testTLSFirst(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{}, &handler{})
	f.secure()
	for range 30 {
		conn := f.dial()
		c := tls.Client(gathering{conn, new(bytes.Buffer)}, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
		f.write(c, []byte("first"))
		f.read(c, len("first"))
		_ = conn.Close()
	}
}

// gathering holds back small writes until the next read, so that the end of a TLS 1.3 handshake and the first request
// travel in one segment.
type gathering struct {
	net.Conn
	held *bytes.Buffer
}

func (g gathering) Write(p []byte) (int, error) { return g.held.Write(p) }

func (g gathering) Read(p []byte) (int, error) {
	if g.held.Len() > 0 {
		if _, err := g.held.WriteTo(g.Conn); err != nil {
			return 0, err
		}
	}
	return g.Conn.Read(p)
}

// testTLSClose shows that a close from outside comes after what was queued, and as close_notify.
func testTLSClose(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 1)
	f := start(t, newEngine, poller.Config{}, opened(ids))
	f.secure()
	for _, version := range versions {
		c := f.handshake(f.dial(), version)
		id := <-ids
		f.Conns().Queue(id, []byte("first,"))
		f.Conns().Flush(id)
		f.Conns().Queue(id, []byte("second,"))
		if !f.Conns().Close(id, []byte("last")) {
			t.Fatal("Close found nobody")
		}
		if got := string(f.readAll(c)); got != "first,second,last" {
			t.Errorf("got %q", got)
		}
	}
}

// testTLSPushers pushes from many goroutines while the client talks too, and does not read for a while.
func testTLSPushers(t *testing.T, newEngine NewEngine) {
	const pushers, each, size = 8, 2000, 100
	ids := make(chan poller.ID, 1)
	// An engine that reads on holds all that the client says meanwhile, with what its records add.
	f := start(t, newEngine, poller.Config{OutboxBytes: 4 << 20, LeftoverBytes: 2 * each * size}, opened(ids))
	f.secure()
	c := f.handshake(f.slowDial(), tls.VersionTLS13)
	id := <-ids
	var wg sync.WaitGroup
	for p := range pushers {
		wg.Go(func() {
			msg := bytes.Repeat([]byte{byte(p)}, size)
			for range each {
				f.Conns().Queue(id, msg)
				f.Conns().Flush(id)
			}
		})
	}
	wg.Go(func() {
		for range each {
			_, _ = c.Write(bytes.Repeat([]byte{pushers}, size))
		}
	})
	var count [pushers + 1]int
	for range (pushers + 1) * each {
		msg := f.read(c, size)
		if !bytes.Equal(msg, bytes.Repeat(msg[:1], size)) {
			t.Fatalf("a message came torn: %x", msg)
		}
		count[msg[0]]++
	}
	wg.Wait()
	for p, n := range count {
		if n != each {
			t.Errorf("%d messages of %d", n, p)
		}
	}
}

// testTLSBad shows what is refused or closed: plain bytes, half a ClientHello, a garbage record; neighbours go on.
func testTLSBad(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{HandshakeTimeout: 300 * time.Millisecond, Tick: 5 * time.Millisecond}, &handler{})
	f.secure()
	neighbour := f.handshake(f.dial(), tls.VersionTLS13)
	hello := clientHello()
	for i, first := range [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n"), hello[:len(hello)/2], hello, {22, 3, 1, 0xff, 0xff}, nil} {
		c := f.dial()
		_, _ = c.Write(first)
		_, _ = io.ReadAll(c)
		_ = c.Close()
		f.eventually("the refusal is counted", func() bool { return f.Stats().Refused[poller.CauseTLSFailed] == uint64(i+1) })
		f.write(neighbour, []byte("x"))
		f.read(neighbour, 1)
	}
	raw := f.dial()
	c := f.handshake(raw, tls.VersionTLS13)
	f.write(c, []byte("x"))
	f.read(c, 1)
	f.write(raw, badRecord)
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after a bad record: %v, not an alert", err)
	}
	f.eventually("the bad record is named", func() bool { return f.h.count(poller.CauseTLSFailed) == 1 })
}

// badRecord has the form of application data, and was encrypted with no key.
var badRecord = []byte{23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}

// recorder is a connection that keeps what is written and says nothing.
type recorder struct {
	net.Conn
	written bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error)      { return r.written.Write(p) }
func (r *recorder) Read([]byte) (int, error)         { return 0, io.EOF }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

// clientHello is the first flight of a client.
func clientHello() []byte {
	var r recorder
	_ = tls.Client(&r, &tls.Config{ServerName: "localhost"}).Handshake() // ends when it wants the answer
	p := r.written.Bytes()
	return p[:5+int(p[3])<<8+int(p[4])] // without the alert that follows
}

// testTLSShutdown ends the engine while handshakes hang.
func testTLSShutdown(t *testing.T, newEngine NewEngine) {
	before := descriptors(t)
	f := start(t, newEngine, poller.Config{}, &handler{})
	f.secure()
	hello := clientHello()
	var clients []io.Closer
	for i := range 20 {
		c := f.dial()
		clients = append(clients, c)
		f.write(c, hello[:len(hello)-i%2*10])
		if i%2 == 0 {
			f.read(c, 1) // the server's flight: its goroutine waits for ours
		}
	}
	f.Shutdown()
	for _, c := range clients {
		_ = c.Close()
	}
	f.eventually("all descriptors are closed", func() bool { return descriptors(t) <= before })
}
