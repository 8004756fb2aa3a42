package stateserver

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/stateserver/store"
)

const (
	// positionsMax bounds acks that wait; beyond it DELIVERED is dropped, since the next one covers it.
	positionsMax = 1 << 16
	// positionsBatchMax bounds one transaction.
	positionsBatchMax = 512
	// ackersMax is how many acks are on their way to the delivery at once: it sends together what comes together.
	ackersMax = 128
	// noticeSendersMax bounds the messages of a group that are looked at for whom to tell.
	noticeSendersMax = 200
	// convBytesMax bounds a conversation id: two user ids and what is around them.
	convBytesMax = 2*ident.UIDBytesMax + 3
)

type positionKey struct{ uid, device, conv string }

type reach struct{ delivered, read int64 }

// positions takes DELIVERED and READ: it gathers them per device and conversation, records how far each user is, in one
// transaction over what has gathered, and only then tells the delivery. In this order a crash leaves the entries in the
// resend table, the message is resent, and the ack comes again.
type positions struct {
	s    *Server
	wake chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	pending map[positionKey]reach
}

func newPositions(s *Server) *positions {
	return &positions{s: s, wake: make(chan struct{}, 1), pending: make(map[positionKey]reach)}
}

// add notes an ack; false when there is no room.
func (p *positions) add(k positionKey, r reach) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, ok := p.pending[k]
	if !ok && len(p.pending) >= positionsMax {
		return false
	}
	p.pending[k] = reach{max(old.delivered, r.delivered), max(old.read, r.read)}
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return true
}

// delivered handles DELIVERED. It has no answer; what is wrong with it is counted.
func (s *Server) delivered(u *uplink, data []byte) {
	var m clientv1.Delivered
	switch err := m.UnmarshalVT(data); {
	case err != nil || len(m.ConvId) > convBytesMax:
		s.metrics.acksDropped("malformed")
	case !s.positions.add(positionKey{u.uid, u.device, m.ConvId}, reach{delivered: m.Seq}):
		s.metrics.acksDropped("full")
	}
	u.reply(nil)
}

// read handles READ, which implies DELIVERED.
func (s *Server) read(u *uplink, data []byte) {
	var m clientv1.Read
	switch err := m.UnmarshalVT(data); {
	case err != nil || len(m.ConvId) > convBytesMax:
		u.reply(errorTo(clientv1.CommandType_READ, "", reason.BadMessage, "not a Read"))
	case !s.positions.add(positionKey{u.uid, u.device, m.ConvId}, reach{m.Seq, m.Seq}):
		u.reply(errorTo(clientv1.CommandType_READ, m.ConvId, reason.Overloaded, ""))
	default:
		u.reply(nil)
	}
}

func (p *positions) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		for batch := p.take(); len(batch) > 0 && ctx.Err() == nil; batch = p.take() {
			p.settle(ctx, batch)
		}
	}
}

func (p *positions) take() map[positionKey]reach {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pending) <= positionsBatchMax {
		batch := p.pending
		p.pending = make(map[positionKey]reach)
		return batch
	}
	batch := make(map[positionKey]reach, positionsBatchMax)
	for k, r := range p.pending {
		if len(batch) == positionsBatchMax {
			break
		}
		batch[k] = r
		delete(p.pending, k)
	}
	return batch
}

func (p *positions) settle(ctx context.Context, batch map[positionKey]reach) {
	type member struct{ uid, conv string }
	index := make(map[member]int, len(batch))
	ps := make([]store.Position, 0, len(batch))
	// readers are the devices that have read farthest.
	readers := make([]string, 0, len(batch))
	for k, r := range batch {
		m := member{k.uid, k.conv}
		i, ok := index[m]
		if !ok {
			i = len(ps)
			index[m] = i
			ps = append(ps, store.Position{UID: k.uid, ConvID: k.conv})
			readers = append(readers, "")
		}
		if r.read > ps[i].Read {
			readers[i] = k.device
		}
		ps[i].Delivered, ps[i].Read = max(ps[i].Delivered, r.delivered), max(ps[i].Read, r.read)
	}
	moved, err := p.s.store.Advance(ctx, ps, time.Now().UnixMilli())
	if err != nil {
		// A resend asks for each of them again.
		p.s.metrics.storeErrors.WithLabelValues("positions").Inc()
		p.s.metrics.acksDroppedN("store", len(batch))
		return
	}
	for i, a := range moved {
		p.notify(ctx, a, readers[i])
	}
	var acks errgroup.Group
	acks.SetLimit(ackersMax)
	for k, r := range batch {
		a := moved[index[member{k.uid, k.conv}]]
		if !a.Member {
			p.s.metrics.acksDropped("not_member")
			continue
		}
		// What a device claims beyond the last message is cut to it.
		seq := min(r.delivered, a.After.Delivered)
		if seq <= 0 {
			continue
		}
		acks.Go(func() error {
			if _, err := p.s.delivery.Acked(ctx, k.uid, k.device, k.conv, seq); err != nil {
				p.s.metrics.acksDropped("delivery")
			}
			return nil
		})
	}
	_ = acks.Wait() // the functions return no error
}

// notify tells senders how far somebody holds and has read a conversation, and his own other devices what reader has read.
func (p *positions) notify(ctx context.Context, a store.Advanced, reader string) {
	delivered, read := a.After.Delivered > a.Before.Delivered, a.After.Read > a.Before.Read
	if !a.Member || (!delivered && !read) {
		return
	}
	to := p.senders(ctx, a)
	if delivered && len(to) > 0 {
		p.s.delivery.Notify(Notice{UIDs: to, Command: command(clientv1.CommandType_DELIVERED_NOTICE,
			&clientv1.DeliveredNotice{ConvId: a.After.ConvID, Uid: a.After.UID, Seq: a.After.Delivered})})
	}
	if read {
		p.s.delivery.Notify(Notice{UIDs: append(to, a.After.UID), NotUID: a.After.UID, NotDevice: reader,
			Command: command(clientv1.CommandType_READ_NOTICE, &clientv1.ReadNotice{ConvId: a.After.ConvID, Uid: a.After.UID, Seq: a.After.Read})})
	}
}

// senders are those whom a moved position concerns: the other user, or whoever wrote what it passed in a small group.
func (p *positions) senders(ctx context.Context, a store.Advanced) []string {
	uid, conv := a.After.UID, a.After.ConvID
	if lower, higher, ok := ident.Users(conv); ok {
		switch {
		case lower == higher:
			return nil
		case lower == uid:
			return []string{higher}
		default:
			return []string{lower}
		}
	}
	l := p.s.groups.list(ctx, conv)
	if l.err != nil || len(l.members) > p.s.cfg.Receipts.GroupMax {
		return nil // SYNC_REPLY repeats what matters
	}
	var to []string
	seen := map[string]bool{uid: true}
	from := min(a.Before.Delivered, a.Before.Read)
	if a.After.Read == a.Before.Read {
		from = a.Before.Delivered
	}
	_ = p.s.store.Scan(ctx, conv, from, noticeSendersMax, func(m *store.Message) bool {
		if m.Seq > max(a.After.Delivered, a.After.Read) {
			return false
		}
		if !seen[m.FromUID] {
			seen[m.FromUID] = true
			to = append(to, m.FromUID)
		}
		return true
	})
	return to
}
