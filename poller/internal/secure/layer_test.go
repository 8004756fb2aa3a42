package secure

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

	"go.uber.org/goleak"

	"github.com/sluice-im/sluice/poller/internal/buffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// link is an engine with one connection, whose client is the other side of it: a net.Conn.
type link struct {
	mu     sync.Mutex
	moved  *sync.Cond
	layer  Layer
	in     bytes.Buffer // client to server
	out    bytes.Buffer
	fin    bool // the client has finished sending
	ended  bool
	shaken chan error
}

func newLink(t *testing.T) *link {
	l := &link{shaken: make(chan error, 1)}
	l.moved = sync.NewCond(&l.mu)
	l.layer.Begin(l, serverConfig(t), new(buffer.Pools))
	return l
}

func (l *link) Enter() bool {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
	}
	return !l.ended
}

func (l *link) Leave() { l.mu.Unlock() }

func (l *link) Receive(p []byte) (int, error) {
	if l.in.Len() == 0 {
		if l.fin {
			return 0, io.EOF
		}
		return 0, ErrAgain
	}
	return l.in.Read(p)
}

func (l *link) Send(record []byte) error {
	l.out.Write(record)
	l.moved.Broadcast()
	return nil
}

func (l *link) Shaken(err error) { l.shaken <- err }

// end ends the connection.
func (l *link) end() {
	l.mu.Lock()
	l.ended = true
	l.layer.Drop()
	l.moved.Broadcast()
	l.mu.Unlock()
	l.layer.Signal()
}

// client is the other side of a link.
type client struct{ *link }

func (c client) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in.Write(p)
	c.layer.Signal()
	return len(p), nil
}

func (c client) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.out.Len() == 0 && !c.ended {
		c.moved.Wait()
	}
	return c.out.Read(p)
}

func (c client) Close() error                     { return nil }
func (c client) LocalAddr() net.Addr              { return nil }
func (c client) RemoteAddr() net.Addr             { return nil }
func (c client) SetDeadline(time.Time) error      { return nil }
func (c client) SetReadDeadline(time.Time) error  { return nil }
func (c client) SetWriteDeadline(time.Time) error { return nil }

var serverConfig = func() func(t *testing.T) *tls.Config {
	var once sync.Once
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	return func(t *testing.T) *tls.Config {
		once.Do(func() {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
			der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
		})
		return config
	}
}()

// shakeHands does both sides of a handshake.
func shakeHands(t *testing.T, version uint16) (*link, *tls.Conn) {
	t.Helper()
	l, s := newLink(t), NewShakers()
	s.Submit(&l.layer)
	c := tls.Client(client{l}, &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-l.shaken; err != nil {
		t.Fatal(err)
	}
	s.Wait()
	if !l.layer.Done() {
		t.Fatal("the handshake is not done")
	}
	return l, c
}

// read reads until nothing more is there.
func (l *link) read(t *testing.T, piece, budget int) (got []byte, eof bool) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := make([]byte, piece); ; {
		before := l.in.Len()
		n, eof, more, err := l.layer.Read(p, budget)
		if err != nil {
			t.Fatal(err)
		}
		if taken := before - l.in.Len(); taken > budget {
			t.Fatalf("%d bytes taken, the budget is %d", taken, budget)
		}
		if got = append(got, p[:n]...); eof || !more && l.in.Len() == 0 {
			return got, eof
		}
	}
}

// TestLayer sends both ways in all sizes, with little room and little budget, and ends both directions.
func TestLayer(t *testing.T) {
	for name, version := range map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13} {
		l, c := shakeHands(t, version)
		for _, n := range []int{1, 1000, 16 << 10, 100_000} {
			want := bytes.Repeat([]byte{byte(n)}, n)
			if _, err := c.Write(want); err != nil {
				t.Fatal(err)
			}
			if got, eof := l.read(t, 777, 1000); !bytes.Equal(got, want) || eof {
				t.Errorf("TLS %s: %d of %d bytes, eof %v", name, len(got), n, eof)
			}
			l.mu.Lock()
			for p := want; len(p) > 0; p = p[min(len(p), 999):] {
				l.layer.Queue(p[:min(len(p), 999)])
			}
			if l.layer.Pending() != n || l.out.Len() > 0 {
				t.Errorf("TLS %s: %d pending and %d sent before Seal", name, l.layer.Pending(), l.out.Len())
			}
			if err := l.layer.Seal(); err != nil || l.layer.Pending() != 0 {
				t.Errorf("TLS %s: seal: %v, %d pending", name, err, l.layer.Pending())
			}
			l.mu.Unlock()
			got := make([]byte, n)
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("TLS %s: %d bytes came back wrong, %v", name, n, err)
			}
		}
		_ = c.CloseWrite()
		for range 2 { // the end stays
			if got, eof := l.read(t, 10, 1000); len(got) > 0 || !eof {
				t.Errorf("TLS %s: after close_notify: %d bytes, eof %v", name, len(got), eof)
			}
		}
		l.mu.Lock()
		l.layer.Queue([]byte("last"))
		l.layer.Farewell()
		l.mu.Unlock()
		if got, err := io.ReadAll(c); string(got) != "last" || err != nil {
			t.Errorf("TLS %s: farewell: %q, %v", name, got, err)
		}
	}
}

// TestLayerPrompt shows that single bytes are read as they come, and that a FIN without close_notify is an end.
func TestLayerPrompt(t *testing.T) {
	l, c := shakeHands(t, tls.VersionTLS13)
	var record bytes.Buffer
	l.mu.Lock()
	l.in.Reset()
	l.mu.Unlock()
	if _, err := c.Write([]byte("slow")); err != nil {
		t.Fatal(err)
	}
	_, _ = record.ReadFrom(&l.in)
	for _, b := range record.Bytes() {
		if got, eof := l.read(t, 100, 100); len(got) > 0 || eof {
			t.Fatalf("read %q, %v before the record was whole", got, eof)
		}
		l.in.WriteByte(b)
	}
	if got, _ := l.read(t, 100, 100); string(got) != "slow" {
		t.Errorf("read %q", got)
	}
	l.fin = true
	if got, eof := l.read(t, 100, 100); len(got) > 0 || !eof {
		t.Errorf("after the FIN: %q, eof %v", got, eof)
	}
}

// TestBadRecord shows that a record that nobody has sealed fails, and that the peer is told.
func TestBadRecord(t *testing.T) {
	l, c := shakeHands(t, tls.VersionTLS13)
	_, _ = client{l}.Write([]byte{23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20})
	if _, _, _, err := l.layer.Read(make([]byte, 10), 1000); err == nil {
		t.Error("a bad record was read")
	}
	if _, err := c.Read(make([]byte, 1)); !errors.As(err, new(tls.AlertError)) && !errors.As(err, new(*net.OpError)) {
		t.Errorf("the client read %v, not an alert", err)
	}
}

// TestHandshakeFails: a client that is not to be talked to is told so, and the layer never says that it is done.
func TestHandshakeFails(t *testing.T) {
	l, s := newLink(t), NewShakers()
	s.Submit(&l.layer)
	err := tls.Client(client{l}, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}).Handshake()
	if err == nil {
		t.Error("the client has shaken hands")
	}
	if err := <-l.shaken; err == nil {
		t.Error("the server has shaken hands")
	}
	s.Wait()
	l.layer.Farewell() // nothing to say
	if l.layer.Done() {
		t.Error("it is done")
	}
}

// TestShakersBounded starts more handshakes than goroutines, whose clients say nothing: all of them end with their
// connections, those that never began too.
func TestShakersBounded(t *testing.T) {
	s := NewShakers()
	links := make([]*link, shakersMax+10)
	for i := range links {
		links[i] = newLink(t)
		s.Submit(&links[i].layer)
	}
	s.mu.Lock()
	count, waiting := s.count, len(s.waiting)
	s.mu.Unlock()
	if count != shakersMax || waiting != 10 {
		t.Errorf("%d goroutines, %d wait", count, waiting)
	}
	for _, l := range links {
		l.end()
	}
	s.Wait()
	if s.count != 0 || s.waiting != nil {
		t.Errorf("%d goroutines, %d wait afterwards", s.count, len(s.waiting))
	}
	for _, l := range links {
		select {
		case err := <-l.shaken:
			t.Fatalf("an ended connection was told %v", err)
		default:
		}
	}
}

func TestWholeHello(t *testing.T) {
	hello := append([]byte{22, 3, 1, 0, 8, 1, 0, 0, 4}, "help"...)
	pieces := append([]byte{22, 3, 1, 0, 2, 1, 0, 22, 3, 1, 0, 3, 0, 4, 'h', 22, 3, 1, 0, 3}, "elp"...)
	for _, p := range [][]byte{hello, pieces} {
		for i := range p {
			if whole, err := WholeHello(p[:i]); whole || err != nil {
				t.Errorf("%d bytes of %x: %v, %v", i, p, whole, err)
			}
		}
	}
	for _, c := range []struct {
		bytes []byte
		whole bool
		err   error
	}{
		{hello, true, nil},
		{append(hello, 1), true, nil},
		{pieces, true, nil},
		{[]byte{22, 3, 1, 0, 1, 1}, false, nil},                                // a record of one byte is no hello
		{[]byte{22, 3, 1, 0, 4, 1, 0, 0x40, 2}, false, errNotTLS},              // one byte longer than the bound
		{[]byte{22, 3, 1, 0, 4, 2, 0, 0, 4}, false, errNotTLS},                 // a ServerHello
		{[]byte{22, 3, 1, 0, 2, 1, 0, 23, 3, 1, 0, 2, 0, 4}, false, errNotTLS}, // goes on as something else
		{[]byte{22, 3, 1, 0, 0}, false, errNotTLS},
		{[]byte("G"), false, errNotTLS},
		{[]byte{22, 2}, false, errNotTLS},
		{[]byte{22, 3, 1, 0x40, 0}, false, nil},
		{[]byte{22, 3, 1, 0x40, 1}, false, errNotTLS},
	} {
		if whole, err := WholeHello(c.bytes); whole != c.whole || !errors.Is(err, c.err) {
			t.Errorf("%x: %v, %v", c.bytes, whole, err)
		}
	}
}

// TestHalves shows what crypto/tls reads of a hello, however it reads: two records with the same bytes, and the rest as it
// came.
func TestHalves(t *testing.T) {
	for _, size := range []int{0, 1, 2, 1531} {
		body := bytes.Repeat([]byte{1}, size)
		for _, piece := range []int{5, 7, 576} {
			l := newLink(t)
			l.in.Write(append(append([]byte{22, 3, 1, byte(size >> 8), byte(size)}, body...), "rest"...))
			var got []byte
			for p := make([]byte, piece); ; {
				n, err := l.layer.shake.hello.receive(l, p)
				if err != nil {
					break
				}
				got = append(got, p[:n]...)
			}
			var records int
			var joined []byte
			for len(got) > 5 && got[0] == 22 {
				n := int(got[3])<<8 + int(got[4])
				joined, got = append(joined, got[5:5+n]...), got[5+n:]
				records++
			}
			if want := min(size, 2); max(records, 1) != max(want, 1) || !bytes.Equal(joined, body) || string(got) != "rest" {
				t.Errorf("%d bytes in pieces of %d: %d records of %d bytes, then %q", size, piece, records, len(joined), got)
			}
		}
	}
}
