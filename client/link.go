package client

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
)

const (
	// downlinkBytesMax bounds one command from the server. Its replies end at 48 KiB; a gateway may be configured with
	// larger frames.
	downlinkBytesMax = 1 << 20
	// fragmentsMax is the gateway's own default in the other direction; it sends none, a proxy may.
	fragmentsMax = 1024
	// outboxBytesMax bounds what waits to be written. The machine has one message, a few pulls and coalesced acks under
	// way, so more than this only gathers when nothing moves any more.
	outboxBytesMax = 4 << 20
	// lingerFor is how long a closing side reads on: unread input at close would send RST and could destroy the last
	// acks on their way (design: protocol 1).
	lingerFor = 500 * time.Millisecond
)

var (
	errOutboxFull = errors.New("outbox is full: the server takes nothing")
	errLinkClosed = errors.New("closed by this side")
)

// link is one connection to the gateway: framing, an outbox with its own writer, and why it ended.
type link struct {
	// Fixed once it is logged in.
	nc           net.Conn
	protocol     codec.Protocol
	writeTimeout time.Duration
	reply        *clientv1.LoginReply

	// The reader's.
	stream codec.Stream
	in     []byte // not yet consumed; spare capacity is read into
	limits codec.Limits
	early  [][]byte // commands that came before LOGIN_REPLY

	// Guarded by mu.
	mu        sync.Mutex
	out       []byte
	ending    *Ending // the first cause wins
	finishing bool
	lastHeard time.Time
	// Reading waits for the application: silence is then of our own making.
	blocked bool
	// RECONNECT: when to dial the next connection; the session takes it from here.
	replaceAt time.Time

	// pending wakes the writer; ended is closed with the first cause.
	pending chan struct{}
	ended   chan struct{}
}

func newLink(nc net.Conn, p codec.Protocol, rest []byte, writeTimeout time.Duration) *link {
	return &link{
		nc: nc, protocol: p, writeTimeout: writeTimeout, stream: codec.NewClientStream(p), in: rest,
		limits:    codec.Limits{FrameBytes: downlinkBytesMax, Fragments: fragmentsMax},
		lastHeard: time.Now(),
		pending:   make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// send queues one command. It never blocks.
func (l *link) send(t clientv1.CommandType, m codec.Message) {
	command := codec.AppendCommand(nil, t, 0, m)
	l.queue(func(out []byte) ([]byte, error) { return codec.AppendClientFrame(l.protocol, out, command, maskKey()) })
}

// queue appends to the outbox. What comes after the end is dropped.
func (l *link) queue(appendTo func(out []byte) ([]byte, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending != nil || l.finishing {
		return
	}
	out, err := appendTo(l.out)
	if err == nil && len(out) > outboxBytesMax {
		err = errOutboxFull
	}
	if err != nil {
		l.endLocked(&Ending{Err: err})
		return
	}
	l.out = out
	poke(l.pending)
}

// maskKey makes the key of a client's frame. It protects proxies from scripts of strangers in a browser; a program's own
// user has nothing to gain, so that a fast generator will do.
func maskKey() (key [4]byte) {
	k := rand.Uint32()
	return [4]byte{byte(k), byte(k >> 8), byte(k >> 16), byte(k >> 24)}
}

// end ends the link; only the first cause counts.
func (l *link) end(e *Ending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(e)
}

func (l *link) endLocked(e *Ending) {
	if l.ending == nil {
		l.ending = e
		close(l.ended)
	}
}

func (l *link) cause() *Ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ending
}

// write is the writer: it ends with the link, or when finish has nothing left to write.
func (l *link) write() {
	for {
		over := false
		select {
		case <-l.pending:
		case <-l.ended:
			over = true
		}
		l.mu.Lock()
		out, finishing := l.out, l.finishing
		l.out = nil
		l.mu.Unlock()
		timeout := l.writeTimeout
		if over || finishing {
			timeout = lingerFor
		}
		if err := l.flush(out, timeout); err != nil {
			l.end(&Ending{Err: err})
			return
		}
		if over || finishing {
			closeWrite(l.nc)
			return
		}
	}
}

func (l *link) flush(out []byte, timeout time.Duration) error {
	if len(out) == 0 {
		return nil
	}
	if err := l.nc.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if _, err := l.nc.Write(out); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func closeWrite(nc net.Conn) {
	if half, ok := nc.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // If it fails the connection is gone, which the reader sees.
	}
}

// next reads until there is a frame. The payload holds until the next call. The end of the connection is an *Ending.
func (l *link) next() (codec.Frame, error) {
	for {
		f, consumed, err := l.stream.Next(l.in, &l.limits)
		l.in = l.in[consumed:]
		if err != nil {
			return codec.Frame{}, &Ending{Reason: codec.ReasonOf(err).String(), Err: err}
		}
		switch f.Kind {
		case codec.KindNone:
			if consumed > 0 {
				continue
			}
			if err := l.fill(); err != nil {
				return codec.Frame{}, err
			}
		case codec.KindPing:
			l.queue(func(out []byte) ([]byte, error) {
				return codec.AppendClientPong(l.protocol, out, f.Payload, maskKey()), nil
			})
		case codec.KindClose:
			l.queue(func(out []byte) ([]byte, error) {
				return codec.AppendClientClose(l.protocol, out, f.Code, "", maskKey()), nil
			})
			return codec.Frame{}, endingOfCode(f.Code)
		case codec.KindPong:
		default:
			return f, nil
		}
	}
}

// fill reads more bytes behind those that are not consumed yet.
func (l *link) fill() error {
	const readAtLeast = 16 << 10
	if cap(l.in)-len(l.in) < readAtLeast/4 {
		l.in = append(make([]byte, 0, len(l.in)+readAtLeast), l.in...)
	}
	n, err := l.nc.Read(l.in[len(l.in):cap(l.in)])
	l.in = l.in[:len(l.in)+n]
	if n > 0 {
		l.heard()
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return &Ending{Err: fmt.Errorf("read: %w", err)}
}

func (l *link) heard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastHeard = time.Now()
}

// setBlocked notes that reading waits for the application, or goes on.
func (l *link) setBlocked(blocked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocked = blocked
	l.lastHeard = time.Now()
}

// silentSince reports when something was last heard; now, while this side does not listen.
func (l *link) silentSince(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocked {
		return now
	}
	return l.lastHeard
}

// finish says goodbye: what is queued is written, then the writing side is closed. The reader goes on until the other
// side closes too, for lingerFor at most.
func (l *link) finish(code uint16) {
	l.queue(func(out []byte) ([]byte, error) {
		return codec.AppendClientClose(l.protocol, out, code, "", maskKey()), nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finishing = true
	poke(l.pending)
}

// shut ends a link and waits for its reader and writer. One that has not ended yet is finished first. It takes lingerFor
// at most, and a little.
func (l *link) shut(both *sync.WaitGroup) {
	l.finish(reason.ClientClosed.Code())
	cut := func() {
		l.end(&Ending{Err: errLinkClosed})
		_ = l.nc.Close() // Everything that mattered was written, or can no longer be.
	}
	timer := time.AfterFunc(lingerFor, cut)
	defer timer.Stop()
	both.Wait()
	cut()
}
