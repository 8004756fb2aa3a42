package stateserver

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-im/sluice/stateserver/node"
	"github.com/sluice-im/sluice/stateserver/store"
)

const (
	// takeOverEvery is how often abandoned nodes are looked for; with the lease's 6 s a dead process's messages are on
	// their way within 8.
	takeOverEvery = time.Second
	// redeliverPage is how many messages are handed over at once.
	redeliverPage = 256
	// redeliverAfter is when messages that are not settled are handed over again: far longer than a lookup takes.
	redeliverAfter = 15 * time.Second
	// entitledAgain is the pause between two looks for the receivers of a message while the database does not answer.
	entitledAgain = time.Second
	// renewOverEvery keeps a node that was taken over while its messages settle.
	renewOverEvery = 2 * time.Second
)

// takeOver delivers what dead processes have stored but maybe not delivered: those of nodes whose lease has ended and that
// have messages above their mark. The lease makes sure that exactly one StateServer does it. A process's own last run is
// one of them: a new run never takes a node with messages above its mark for its own ids.
func (s *Server) takeOver(ctx context.Context) {
	tick := time.NewTicker(takeOverEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		l, ok, err := s.store.TakeOver(ctx, s.node.Owner(), node.Life)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				s.log.Warn("looking for abandoned nodes failed", "err", err)
			}
		case ok:
			s.log.Info("delivering what an ended process left", "node", l.Node, "mark", l.Mark)
			if s.deliverNode(ctx, l) {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// deliverNode delivers the messages of another node above its mark, page by page, and moves its mark behind each page.
// When it is cut short (false), the mark says where the next one goes on.
func (s *Server) deliverNode(ctx context.Context, l store.NodeLease) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var renewing sync.WaitGroup
	renewing.Go(func() { s.keepNode(ctx, cancel, l) })
	mark, total, complete := l.Mark, 0, false
	for ctx.Err() == nil {
		page, err := s.store.Above(ctx, l.Node, mark, redeliverPage)
		if err == nil && len(page) == 0 {
			complete = true
			break
		}
		if err == nil {
			err = s.redeliver(ctx, page)
		}
		if err == nil {
			mark = page[len(page)-1].MsgID
			err = s.store.SaveMark(ctx, l, mark)
		}
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("delivering what an ended process left failed", "node", l.Node, "err", err)
			}
			break
		}
		total += len(page)
	}
	cancel()
	renewing.Wait()
	// The lease is given back in any case: with messages left, the next look takes it over again.
	if err := s.store.ReleaseNode(context.WithoutCancel(ctx), l, l.IDsUntil); err != nil {
		s.log.Warn("node not released", "node", l.Node, "err", err)
	}
	s.log.Info("delivered what an ended process left", "node", l.Node, "messages", total, "mark", mark)
	return complete
}

func (s *Server) keepNode(ctx context.Context, lost context.CancelFunc, l store.NodeLease) {
	tick := time.NewTicker(renewOverEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.store.RenewNode(ctx, l, node.Life, l.IDsUntil); err != nil && ctx.Err() == nil {
			s.log.Warn("node that was taken over is not renewed", "node", l.Node, "err", err)
			lost()
			return
		}
	}
}

// unsettled are the messages of a page that are not yet known to be seen to.
type unsettled struct {
	mu sync.Mutex
	// Guarded by mu.
	open map[int64]store.Message
	// none is closed when open is empty.
	none chan struct{}
}

func (p *unsettled) settle(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.open[id]; !ok {
		return
	}
	if delete(p.open, id); len(p.open) == 0 {
		close(p.none)
	}
}

// rest are the open messages in the order of their ids.
func (p *unsettled) rest() []store.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.open), func(a, b store.Message) int { return cmp.Compare(a.MsgID, b.MsgID) })
}

// redeliver enqueues a page of messages and returns when all are settled. What is not settled for long is enqueued again:
// a delivery that waits for Redis may drop what it holds.
func (s *Server) redeliver(ctx context.Context, page []store.Message) error {
	p := &unsettled{open: make(map[int64]store.Message, len(page)), none: make(chan struct{})}
	for _, m := range page {
		p.open[m.MsgID] = m
	}
	again := time.NewTicker(redeliverAfter)
	defer again.Stop()
	for {
		tasks := s.tasks(ctx, p.rest(), func(id int64) func() { return func() { p.settle(id) } })
		if err := s.delivery.Enqueue(ctx, tasks); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.none:
			return nil
		case <-again.C:
		}
	}
}

// unwatched is for tasks whose end nobody waits for.
func unwatched(int64) func() { return nil }

// tasks finds the receivers of stored messages. The device that sent one is not known any more, so it gets its own message
// too, and drops it by its number.
func (s *Server) tasks(ctx context.Context, page []store.Message, settled func(msgID int64) func()) []Task {
	tasks := make([]Task, 0, len(page))
	for _, m := range page {
		to, err := s.entitled(ctx, &m)
		for err != nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(entitledAgain):
			}
			to, err = s.entitled(ctx, &m)
		}
		tasks = append(tasks, Task{Message: m, Receivers: to, Settled: settled(m.MsgID)})
	}
	return tasks
}

// redeliverOwn hands the messages of this process's node above its mark to the delivery once more. It is the delivery's
// DeliveryParts.Redeliver; doubled entries settle the same ids.
func (s *Server) redeliverOwn(ctx context.Context) {
	lease, mark := s.node.Lease(), s.node.Mark()
	total := 0
	for ctx.Err() == nil {
		page, err := s.store.Above(ctx, lease.Node, mark, redeliverPage)
		if err == nil && len(page) > 0 {
			err = s.delivery.Enqueue(ctx, s.tasks(ctx, page, unwatched))
		}
		if err != nil {
			s.log.Warn("delivering again what may have been lost failed", "node", lease.Node, "err", err)
			return
		}
		total += len(page)
		if len(page) < redeliverPage {
			break
		}
		mark = page[len(page)-1].MsgID
	}
	s.log.Info("delivered again what may have been lost", "node", lease.Node, "messages", total)
}
