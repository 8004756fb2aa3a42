// Package load is the load generator of the benchmarks: one epoll loop that drives many client connections with little
// CPU of its own, closed loop (a fixed number in flight) or open loop (a fixed rate, latency counted from when a message
// was due, so that a stall is not hidden).
package load

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/codec"
)

// Transport is what the connections speak.
type Transport string

// The transports. Raw is for the bare echo: as many bytes come back as were sent.
const (
	WS Transport = "ws"
	// WSS is for idle connections: they log in over TLS and then do nothing.
	WSS Transport = "wss"
	TCP Transport = "tcp"
	Raw Transport = "raw"
)

// Options describe a fleet of clients.
type Options struct {
	Addr      string
	Transport Transport
	Conns     int
	// InFlight messages per connection, closed loop. 0, with a Rate of 0, is a fleet that only listens.
	InFlight int
	// Rate is messages a second over all connections; 0 = closed loop.
	Rate int
	// Dialers is how many clients log in at once; 0 = one after another.
	Dialers int
	// DialRate is logins begun a second; 0 = as fast as the dialers are.
	DialRate int
	// FrameBytes is the size of what a listening Raw fleet counts as one message.
	FrameBytes int
	// Size is the content of a message in bytes.
	Size int
	// Token for client i; unused for Raw.
	Token func(i int) (string, error)
}

// Result is what a run saw.
type Result struct {
	Messages uint64 `json:"messages"`
	Failed   uint64 `json:"failed"`
	// Heard is what a fleet that only listens has received of them.
	Heard   uint64        `json:"heard,omitempty"`
	Elapsed time.Duration `json:"elapsed"`
	P50     time.Duration `json:"p50"`
	P99     time.Duration `json:"p99"`
	Max     time.Duration `json:"max"`
}

// latencyMax is the largest latency that the histogram tells apart; anything slower counts as this.
const latencyMax = 60 * time.Second

// readBytes bounds one read; a connection's answers of one round fit well.
const readBytes = 64 << 10

// uuidBytes is the length of a generated uuid: fixed, so that it can be written over in the prepared frame.
const uuidBytes = 20

// Fleet is a set of logged-in connections.
type Fleet struct {
	o      Options
	ep     int
	conns  []conn
	frame  []byte // a prepared command (or raw message) whose uuid is written over
	uuidAt int
	out    []byte
	in     []byte
	next   uint64
	limits codec.Limits
	// counted is the type of the commands that count as answers.
	counted  clientv1.CommandType
	refused  atomic.Int64
	dialTime DialTime
	result   Result
	latency  *hdrhistogram.Histogram
	deadline time.Time
}

type conn struct {
	fd   int
	open bool
	// tls is set for WSS; it has no fd of ours then.
	tls    *tls.Conn
	stream codec.Stream
	// left is what is not a whole frame yet; nil nearly always.
	left []byte
	// sent is a ring of the times at which the messages in flight were due.
	sent []time.Time
	head int
	n    int
	raw  int // bytes of an incomplete raw echo
}

// Close closes every connection.
func (f *Fleet) Close() {
	for i := range f.conns {
		if c := f.conns[i].tls; c != nil {
			_ = c.Close()
		}
		if f.conns[i].open {
			_ = unix.Close(f.conns[i].fd)
		}
	}
	_ = unix.Close(f.ep)
}

// appendMessage appends one framed message with a fresh uuid.
func (f *Fleet) appendMessage(dst []byte) ([]byte, error) {
	const digits = "0123456789abcdef"
	f.next++
	u := f.frame[f.uuidAt : f.uuidAt+uuidBytes]
	for i, n := len(u)-1, f.next; i >= 0; i, n = i-1, n>>4 {
		u[i] = digits[n&15]
	}
	switch f.o.Transport {
	case Raw:
		return append(dst, f.frame...), nil
	case TCP:
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(f.frame)))
		return append(dst, f.frame...), nil
	default:
		var mask [4]byte
		binary.BigEndian.PutUint32(mask[:], uint32(f.next)*2654435761)
		return codec.AppendClientFrame(codec.WebSocket, dst, f.frame, mask)
	}
}

// errIdleOnly: the loop reads and writes sockets, not TLS.
var errIdleOnly = errors.New("wss connections can only be idle")

// Run loads for d and reports. Answers that are outstanding when d is over are waited for, for at most two seconds.
func (f *Fleet) Run(ctx context.Context, d time.Duration) (Result, error) {
	if f.o.Transport == WSS {
		return Result{}, errIdleOnly
	}
	f.result = Result{}
	f.latency.Reset()
	start := time.Now()
	f.deadline = start.Add(d)
	var err error
	switch {
	case f.o.Rate > 0:
		err = f.open(ctx, start)
	case f.o.InFlight > 0:
		err = f.closed(ctx)
	default:
		err = f.listen(ctx)
	}
	f.result.Elapsed = time.Since(start)
	if err != nil {
		return f.result, err
	}
	f.drain(ctx)
	us := func(q float64) time.Duration {
		return time.Duration(f.latency.ValueAtQuantile(q)) * time.Microsecond
	}
	f.result.P50, f.result.P99, f.result.Max = us(50), us(99), time.Duration(f.latency.Max())*time.Microsecond
	return f.result, nil
}

func (f *Fleet) closed(ctx context.Context) error {
	now := time.Now()
	for i := range f.conns {
		if err := f.send(&f.conns[i], f.o.InFlight, now); err != nil {
			return err
		}
	}
	for ctx.Err() == nil && time.Now().Before(f.deadline) {
		if err := f.pass(100, func(c *conn, answered int, now time.Time) error {
			return f.send(c, answered, now)
		}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// lateMax is how long a listening fleet waits for what was sent at the very end.
const lateMax = 500 * time.Millisecond

// listen counts what comes.
func (f *Fleet) listen(ctx context.Context) error {
	for ctx.Err() == nil && time.Now().Before(f.deadline.Add(lateMax)) {
		if err := f.pass(10, nil); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// open sends at a fixed rate, round robin, in steps of at most a millisecond.
func (f *Fleet) open(ctx context.Context, start time.Time) error {
	sent := 0
	gap := time.Second / time.Duration(f.o.Rate)
	for ctx.Err() == nil && time.Now().Before(f.deadline) {
		for due := start.Add(time.Duration(sent) * gap); !due.After(time.Now()); due = start.Add(time.Duration(sent) * gap) {
			c := &f.conns[sent%len(f.conns)]
			sent++
			if c.n == len(c.sent) {
				f.result.Failed++
				continue
			}
			if err := f.send(c, 1, due); err != nil {
				return err
			}
		}
		if err := f.pass(1, nil); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (f *Fleet) drain(ctx context.Context) {
	until := time.Now().Add(2 * time.Second)
	for ctx.Err() == nil && time.Now().Before(until) {
		open := 0
		for i := range f.conns {
			open += f.conns[i].n
		}
		if open == 0 {
			return
		}
		if f.pass(10, nil) != nil {
			return
		}
	}
}

// pass handles what is readable; then is told how many answers a connection got.
func (f *Fleet) pass(timeoutMillis int, then func(c *conn, answered int, now time.Time) error) error {
	var events [512]unix.EpollEvent
	n, err := unix.EpollWait(f.ep, events[:], timeoutMillis)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("epoll_wait: %w", err)
	}
	now := time.Now()
	for _, ev := range events[:max(n, 0)] {
		c := &f.conns[ev.Fd]
		answered, err := f.read(c)
		if err != nil {
			return err
		}
		for range min(answered, c.n) {
			_ = f.latency.RecordValue(int64(min(now.Sub(c.sent[c.head]), latencyMax) / time.Microsecond))
			c.head = (c.head + 1) % len(c.sent)
			c.n--
		}
		f.result.Messages += uint64(answered)
		if then != nil && answered > 0 {
			if err := then(c, answered, now); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Fleet) send(c *conn, n int, due time.Time) error {
	f.out = f.out[:0]
	for range n {
		var err error
		if f.out, err = f.appendMessage(f.out); err != nil {
			return err
		}
		c.sent[(c.head+c.n)%len(c.sent)] = due
		c.n++
	}
	w, err := unix.Write(c.fd, f.out)
	if err != nil || w != len(f.out) {
		return fmt.Errorf("the server does not keep up: wrote %d of %d bytes: %w", w, len(f.out), err)
	}
	return nil
}

// read counts the answers in what is readable.
func (f *Fleet) read(c *conn) (int, error) {
	n, err := unix.Read(c.fd, f.in)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read: %w", err)
	case n == 0:
		return 0, errors.New("the server closed a connection")
	}
	if f.o.Transport == Raw {
		c.raw += n
		answered := c.raw / len(f.frame)
		c.raw %= len(f.frame)
		return answered, nil
	}
	b := f.in[:n]
	if len(c.left) > 0 {
		b = append(c.left, b...)
		c.left = nil
	}
	answered := 0
	for {
		frame, used, err := c.stream.Next(b, &f.limits)
		if err != nil {
			return answered, err
		}
		b = b[used:]
		if frame.Kind == codec.KindCommand {
			if h, err := codec.Scan(frame.Payload); err == nil && h.Type == f.counted {
				answered++
			}
		}
		if frame.Kind == codec.KindNone {
			break
		}
	}
	if len(b) > 0 {
		c.left = append([]byte(nil), b...)
	}
	return answered, nil
}
