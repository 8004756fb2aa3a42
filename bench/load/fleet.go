package load

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/codec"
)

// openMax is what an open loop may have outstanding on one connection before a message counts as failed.
const openMax = 1024

// DialTime is how the clients came in.
type DialTime struct {
	Clients int `json:"clients"`
	// Refused is how often a client was told to come again.
	Refused int64         `json:"refused"`
	Elapsed time.Duration `json:"elapsed"`
	P50     time.Duration `json:"p50"`
	P99     time.Duration `json:"p99"`
}

// Dial connects and logs in all clients.
func Dial(o Options) (*Fleet, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	f := &Fleet{o: o, ep: ep, in: make([]byte, readBytes), limits: codec.Limits{FrameBytes: readBytes, Fragments: 1},
		latency: hdrhistogram.New(1, int64(latencyMax/time.Microsecond), 3), conns: make([]conn, o.Conns)}
	f.prepare()
	if err := f.dial(); err != nil {
		f.Close()
		return nil, err
	}
	ring := max(o.InFlight, 1)
	if o.Rate > 0 {
		ring = openMax
	}
	for i := range f.conns {
		if !f.conns[i].open {
			continue
		}
		f.conns[i].sent = make([]time.Time, ring)
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, f.conns[i].fd, &ev); err != nil {
			f.Close()
			return nil, fmt.Errorf("epoll_ctl: %w", err)
		}
	}
	return f, nil
}

// DialTime is how long Dial took.
func (f *Fleet) DialTime() DialTime { return f.dialTime }

// dial lets Dialers clients at a time log in, in the order of their numbers. They block, each on a thread of its own, so
// that a login waits for nothing but the server.
func (f *Fleet) dial() error {
	var (
		next   atomic.Int64
		failed atomic.Pointer[error]
		all    sync.WaitGroup
	)
	took := make([]time.Duration, len(f.conns))
	start := time.Now()
	for range max(f.o.Dialers, 1) {
		all.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(f.conns) {
					return
				}
				if f.o.DialRate > 0 {
					time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(f.o.DialRate))))
				}
				begun := time.Now()
				c, err := f.patiently(i)
				if err != nil {
					err = fmt.Errorf("client %d: %w", i, err)
					failed.CompareAndSwap(nil, &err)
					return
				}
				f.conns[i], took[i] = c, time.Since(begun)
			}
		})
	}
	all.Wait()
	f.dialTime = DialTime{Clients: len(f.conns), Refused: f.refused.Load(), Elapsed: time.Since(start)}
	if err := failed.Load(); err != nil {
		return *err
	}
	if n := len(took); n > 0 {
		slices.Sort(took)
		f.dialTime.P50, f.dialTime.P99 = took[n/2], took[n*99/100]
	}
	return nil
}

// prepare builds the frame that every message is a copy of.
func (f *Fleet) prepare() {
	if f.o.InFlight == 0 && f.o.Rate == 0 {
		f.frame, f.counted = make([]byte, max(f.o.FrameBytes, 1)), clientv1.CommandType_MESSAGEDOWN
		return
	}
	f.counted = clientv1.CommandType_MESSAGEACK
	content := make([]byte, f.o.Size)
	for i := range content {
		content[i] = 'x'
	}
	marker := "00000000000000000000"[:uuidBytes]
	up := clientv1.MessageUp{Uuid: marker, Type: 1, Content: string(content), ReceiverId: "nobody"}
	f.frame = codec.AppendCommand(nil, clientv1.CommandType_MESSAGEUP, 0, &up)
	for i := range f.frame {
		if string(f.frame[i:min(i+uuidBytes, len(f.frame))]) == marker {
			f.uuidAt = i
			return
		}
	}
}
