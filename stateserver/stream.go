package stateserver

import (
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

const (
	// streamInFlightMax bounds the unanswered frames of one stream: beyond it the stream is not read, and the gateway's own
	// queue fills.
	streamInFlightMax = 4096
	// A batch of answers ends at either bound (design: protocol 2).
	batchItemsMax = 512
	batchBytesMax = 1 << 20
)

// stream is one Relay call: a goroutine that reads and handles batches, one that sends what was answered meanwhile.
type stream struct {
	s   *Server
	rpc grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]
	// wake has a value when there is something to send.
	wake chan struct{}

	mu sync.Mutex
	// room is signalled when an answer makes room below streamInFlightMax.
	room *sync.Cond
	// Owned by receive.
	clock skew

	// Guarded by mu. lanes are the connections with unanswered frames.
	lanes    map[uint64]*lane
	inFlight int
	out      []*statev1.DownlinkItem
	pings    int
	draining bool
	ended    bool
}

// lane is the unanswered frames of one connection, in order: answers leave in that order.
type lane struct{ slots []*slot }

type slot struct {
	u        *uplink
	lane     *lane
	answered bool
	a        answer
	// start runs when everything before it is answered; nil once started.
	start func()
}

// Relay implements statev1.StateServerServer.
func (sv service) Relay(rpc grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error {
	s := sv.s
	st := &stream{s: s, rpc: rpc, wake: make(chan struct{}, 1), lanes: make(map[uint64]*lane)}
	st.room = sync.NewCond(&st.mu)
	if !s.streams.add(st) {
		return status.Error(codes.Unavailable, "draining")
	}
	defer s.streams.remove(st)

	var sending sync.WaitGroup
	sent := make(chan error, 1)
	stop := make(chan struct{})
	sending.Go(func() { sent <- st.send(stop) })
	err := st.receive()
	if errors.Is(err, io.EOF) {
		// The gateway has closed its side: what is in flight is still answered.
		err = st.settle()
	}
	close(stop)
	st.end()
	sending.Wait()
	if sendErr := <-sent; err == nil {
		err = sendErr
	}
	return err
}

func (st *stream) receive() error {
	for {
		in, err := st.rpc.Recv()
		if err != nil {
			return err
		}
		if len(in.Items) == 0 {
			st.ping()
			continue
		}
		if len(in.Items) > batchItemsMax {
			return status.Errorf(codes.InvalidArgument, "batch of %d items, allowed are %d", len(in.Items), batchItemsMax)
		}
		if err := st.waitForRoom(len(in.Items)); err != nil {
			return err
		}
		st.handle(in, time.Now())
	}
}

// handle opens a slot for each item, in order, and then handles them.
func (st *stream) handle(in *statev1.UplinkBatch, now time.Time) {
	ups := make([]*uplink, len(in.Items))
	st.mu.Lock()
	for i, it := range in.Items {
		u := st.s.uplinkOf(in.Incarnation, it, st, now)
		u.age = st.clock.age(now.UnixMilli(), it)
		ups[i] = u
		l := st.lanes[u.connID]
		if l == nil {
			l = &lane{}
			st.lanes[u.connID] = l
		}
		u.slot = &slot{u: u, lane: l}
		l.slots = append(l.slots, u.slot)
	}
	st.mu.Unlock()
	st.s.handle(st.rpc.Context(), in.Items, ups, st)
}

func (st *stream) waitForRoom(n int) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.inFlight > 0 && st.inFlight+n > streamInFlightMax && !st.ended {
		st.room.Wait()
	}
	if st.ended {
		return status.Error(codes.Unavailable, "stream ended")
	}
	st.inFlight += n
	return nil
}

func (st *stream) ping() {
	st.mu.Lock()
	st.pings++
	st.mu.Unlock()
	st.signal()
}

func (st *stream) signal() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// answered implements sink.
func (st *stream) answered(u *uplink, a answer) {
	st.mu.Lock()
	u.slot.answered, u.slot.a = true, a
	start := st.flush(u.connID, u.slot.lane)
	st.mu.Unlock()
	st.signal()
	if start != nil {
		start()
	}
}

// whenFirst runs start when everything before u on its connection is answered. start must not block.
func (st *stream) whenFirst(u *uplink, start func()) {
	st.mu.Lock()
	u.slot.start = start
	run := st.flush(u.connID, u.slot.lane)
	st.mu.Unlock()
	if run != nil {
		run()
	}
}

// flush moves the answered front of a lane to the output and returns what is to be started now, if anything.
func (st *stream) flush(conn uint64, l *lane) func() {
	n := 0
	for ; n < len(l.slots) && l.slots[n].answered; n++ {
		sl := l.slots[n]
		if !st.ended {
			st.out = append(st.out, &statev1.DownlinkItem{
				ConnId: conn, ConnSeq: sl.u.connSeq, Payload: sl.a.payload, Status: uint32(sl.a.code), Detail: sl.a.detail})
		}
		l.slots[n] = nil
	}
	l.slots = l.slots[n:]
	st.inFlight -= n
	if n > 0 {
		st.room.Signal()
	}
	if len(l.slots) == 0 {
		delete(st.lanes, conn)
		return nil
	}
	start := l.slots[0].start
	l.slots[0].start = nil
	return start
}

// send writes what has gathered since the last Send; it ends with stop or the stream.
func (st *stream) send(stop <-chan struct{}) error {
	var spare []*statev1.DownlinkItem
	for {
		select {
		case <-stop:
			return st.sendGathered(&spare)
		case <-st.rpc.Context().Done():
			st.end()
			return st.rpc.Context().Err()
		case <-st.wake:
		}
		if err := st.sendGathered(&spare); err != nil {
			st.end()
			return err
		}
	}
}

func (st *stream) sendGathered(spare *[]*statev1.DownlinkItem) error {
	st.mu.Lock()
	items, pings, draining := st.out, st.pings, st.draining
	st.out, st.pings, st.draining = (*spare)[:0], 0, false
	st.mu.Unlock()
	*spare = items
	for ; pings > 0; pings-- {
		if err := st.rpc.Send(&statev1.DownlinkBatch{}); err != nil {
			return err
		}
	}
	if draining {
		if err := st.rpc.Send(&statev1.DownlinkBatch{Draining: true}); err != nil {
			return err
		}
	}
	for len(items) > 0 {
		n, bytes := 0, 0
		for n < len(items) && n < batchItemsMax && (n == 0 || bytes+len(items[n].Payload) <= batchBytesMax) {
			bytes += len(items[n].Payload) + 32
			n++
		}
		if err := st.rpc.Send(&statev1.DownlinkBatch{Items: items[:n]}); err != nil {
			return err
		}
		items = items[n:]
	}
	clear(*spare)
	return nil
}

// settle waits until everything in flight is answered; the sweeper bounds that.
func (st *stream) settle() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.inFlight > 0 && !st.ended {
		st.room.Wait()
	}
	return nil
}

// end wakes whoever waits for room: no answer will be sent any more.
func (st *stream) end() {
	st.mu.Lock()
	st.ended = true
	st.mu.Unlock()
	st.room.Broadcast()
}

// streams are the open Relay calls.
type streams struct {
	mu sync.Mutex
	// Guarded by mu.
	open     map[*stream]struct{}
	draining bool
}

func newStreams() *streams { return &streams{open: make(map[*stream]struct{})} }

func (ss *streams) add(st *stream) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.draining {
		return false
	}
	ss.open[st] = struct{}{}
	return true
}

func (ss *streams) remove(st *stream) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.open, st)
}

// drain tells every gateway to send no new items and to close when the answers are there.
func (ss *streams) drain() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.draining = true
	for st := range ss.open {
		st.mu.Lock()
		st.draining = true
		st.mu.Unlock()
		st.signal()
	}
}
