package conformance

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// ownMessage is what may be sent to id only.
func ownMessage(id poller.ID) []byte {
	p := binary.BigEndian.AppendUint64(nil, uint64(id))
	return append(p, p...)
}

// testChurn lets 64 goroutines push at connections that are reset, closed, woken, timed out and connected again: no byte
// may reach a connection that it was not meant for, and everything must be back at the baseline in the end.
func testChurn(t *testing.T, newEngine NewEngine) {
	clients, total, enough := 1000, int64(30_000), int64(3000)
	if testing.Short() {
		clients, total = 200, enough
	}
	churn(t, newEngine, clients, total, enough, nil)
}

// testTLSChurn does the same through TLS; each handshake costs more than a plain connection's whole life.
func testTLSChurn(t *testing.T, newEngine NewEngine) {
	clients, total, enough := 200, int64(3000), int64(300)
	if testing.Short() {
		clients, total = 50, enough
	}
	churn(t, newEngine, clients, total, enough, &tls.Config{Certificates: []tls.Certificate{certificate(t)}})
}

func churn(t *testing.T, newEngine NewEngine, clients int, total, enough int64, secure *tls.Config) {
	const pushers = 64
	before := descriptors(t)
	ids := make([]atomic.Uint64, 4*clients) // old ones among them
	h := &handler{
		open: func(c poller.Conn, _ poller.Info, now time.Duration) poller.Verdict {
			ids[rand.IntN(len(ids))].Store(uint64(c.ID()))
			c.Queue(ownMessage(c.ID()))
			c.SetTimer(now + time.Duration(rand.IntN(200))*time.Millisecond)
			return poller.Rearm
		},
		data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
			c.Queue(ownMessage(c.ID()))
			return rand.IntN(len(in.Bytes) + 1), poller.Verdict(rand.IntN(2))
		},
		timeout: func(c poller.Conn, now time.Duration) poller.Verdict {
			c.SetTimer(now + 50*time.Millisecond) // whom nobody wakes would stay parked
			return poller.Verdict(rand.IntN(3))
		},
	}
	f := start(t, newEngine, poller.Config{Connections: clients + 100, Tick: 5 * time.Millisecond, Linger: 20 * time.Millisecond}, h)
	addr := f.listen(poller.Listener{Index: 1, TLS: secure})
	wrap := func(c net.Conn) net.Conn { return c }
	if secure != nil {
		wrap = func(c net.Conn) net.Conn { return tls.Client(c, &tls.Config{InsecureSkipVerify: true}) }
	}
	stop := make(chan struct{})
	var push sync.WaitGroup
	for range pushers {
		push.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				f.disturb(poller.ID(ids[rand.IntN(len(ids))].Load()))
				if n%64 == 0 {
					pause()
				}
			}
		})
	}
	visits(t, addr, wrap, clients, total, enough)
	close(stop)
	push.Wait()
	f.eventually("all connections have ended", func() bool { return f.Stats().Open[1] == 0 })
	if s := f.Stats(); s.Parked != 0 || s.OutboxBytes != 0 || s.Panics != 0 {
		t.Errorf("stats afterwards %+v", s)
	}
	f.Shutdown()
	f.eventually("all descriptors are closed", func() bool { return descriptors(t) <= before })
}

// visits is clients at work until there were total visits, or enough of them within soakMax.
func visits(t *testing.T, addr string, wrap func(net.Conn) net.Conn, clients int, total, enough int64) {
	began := time.Now()
	var begun atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for {
				if n := begun.Add(1); n > total || n > enough && time.Since(began) > soakMax {
					return
				}
				if err := visit(addr, wrap); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if done := begun.Load() - int64(clients); done < total {
		t.Logf("ended after %d visits of %d", done, total)
	}
}

// disturb does one of the things that other goroutines do to a connection.
func (f *fixture) disturb(id poller.ID) {
	switch n := rand.IntN(100); {
	case n < 80:
		if f.Conns().Queue(id, ownMessage(id)) != poller.StatusGone {
			f.Conns().Flush(id)
		}
	case n < 96:
		f.Conns().Wake(id)
	case n < 98:
		f.Conns().Close(id, ownMessage(id))
	default:
		f.Conns().Reset(id)
	}
}

// visit is the life of one client: it looks at all it gets, and leaves in one of several ways.
func visit(addr string, wrap func(net.Conn) net.Conn) error {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return peerWent(err)
	}
	tcp := conn.(*net.TCPConn)
	defer func() { _ = tcp.Close() }()
	c := wrap(tcp)
	_ = c.SetDeadline(time.Now().Add(patience))
	own := make([]byte, 16)
	if _, err := io.ReadFull(c, own); err != nil {
		return peerWent(err)
	}
	if !bytes.Equal(own[:8], own[8:]) {
		return fmt.Errorf("first message %x", own)
	}
	_ = c.SetDeadline(time.Now().Add(time.Duration(rand.IntN(100)) * time.Millisecond))
	got := make([]byte, 16)
	for range rand.IntN(50) {
		if _, err := c.Write(make([]byte, rand.IntN(40))); err != nil {
			return peerWent(err)
		}
		if _, err := io.ReadFull(c, got); err != nil {
			return peerWent(err)
		}
		if !bytes.Equal(got, own) {
			return fmt.Errorf("connection %x got a message for %x", own[:8], got[:8])
		}
	}
	switch rand.IntN(3) {
	case 0:
		_ = tcp.SetLinger(0)
	case 1:
		_ = tcp.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}
	return nil
}

// peerWent lets pass how a connection may end in this test.
func peerWent(err error) error {
	var ne net.Error
	var alert tls.AlertError
	if errors.As(err, &alert) {
		return nil // close_notify in the middle of a handshake
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &ne) {
		return nil
	}
	return err
}
