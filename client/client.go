package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-im/sluice/client/internal/core"
)

// marksEvery is the least time between two saves of the watermarks. Old marks only mean that something comes twice after
// a crash, so that a disk sync a message would be too high a price.
const marksEvery = 100 * time.Millisecond

// Client sends and receives for one user on one device. Its methods may be called from everywhere, its callbacks too.
type Client struct {
	// Fixed after New.
	cfg        Config
	log        *slog.Logger
	target     target
	sessionID  string
	queue      Queue
	watermarks Watermarks
	backlog    *backlog
	closed     chan struct{} // closed by Close
	closeOnce  sync.Once
	wake       chan struct{} // the session loop's: something may have become due earlier
	marksDirty chan struct{}
	// elsewhere counts what goes on beside the session: connections that were replaced and are not closed yet, and the
	// one that is being dialled. Run waits for them.
	elsewhere sync.WaitGroup

	// sending makes the order of the persisted queue that of the machine's. It is taken before mu.
	sending sync.Mutex

	// Guarded by mu.
	mu       sync.Mutex
	machine  *core.Machine
	handles  map[string]*Outgoing
	pulls    map[uint64]chan core.Pulled
	link     *link // where Write effects go; nil = there is no connection
	probe    bool  // a heartbeat is wanted out of turn
	token    string
	deviceID string
	sent     uint64 // numbers the messages of this run
	running  bool
	over     bool
}

// New loads what earlier runs left and returns a Client that does nothing until Run, except to queue.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t, err := parseTarget(cfg.URL)
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, log: cfg.Log, target: t, sessionID: uuid.NewString(), queue: cfg.Queue, watermarks: cfg.Watermarks,
		backlog: newBacklog(cfg.EventsMax), wake: make(chan struct{}, 1), marksDirty: make(chan struct{}, 1),
		handles: make(map[string]*Outgoing), pulls: make(map[uint64]chan core.Pulled),
		token: cfg.Token, deviceID: cfg.DeviceID, closed: make(chan struct{}),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.queue == nil {
		c.queue = &MemoryQueue{}
	}
	if c.watermarks == nil {
		c.watermarks = &MemoryWatermarks{}
	}
	if err := c.restore(); err != nil {
		return nil, err
	}
	return c, nil
}

// restore continues from what is persisted.
func (c *Client) restore() error {
	marks, err := c.watermarks.Load()
	if err != nil {
		return fmt.Errorf("load watermarks: %w", err)
	}
	pending, err := c.queue.Load()
	if err != nil {
		return fmt.Errorf("load queue: %w", err)
	}
	c.machine = core.New(c.cfg.core(), marks.core(), rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())))
	for i := range pending {
		up := pending[i].up()
		up.SessionId = c.sessionID
		c.machine.Restore(up, pending[i].Failed)
		if pending[i].Failed == "" {
			c.handles[up.Uuid] = newOutgoing(up.Uuid)
		}
	}
	return nil
}

// Run connects, and stays connected, until ctx ends or Close is called (nil), or until the server says that the client
// must not come back by itself (an *Ending). It may be called once, and ends at once after Close.
func (c *Client) Run(ctx context.Context) error {
	if !c.start() {
		return ErrRunning
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var others sync.WaitGroup
	others.Go(func() {
		select {
		case <-c.closed:
			cancel()
		case <-ctx.Done():
		}
	})
	others.Go(c.backlog.run)
	stopSaving := make(chan struct{})
	others.Go(func() { c.saveMarks(stopSaving) })

	ending := c.stayConnected(ctx)
	cancel()
	c.elsewhere.Wait()
	c.end(ending)
	c.backlog.close()
	close(stopSaving)
	others.Wait()
	c.saveMarksNow()
	err := errors.Join(c.queue.Close(), c.watermarks.Close())
	if ending != nil {
		return errors.Join(ending, err)
	}
	return err
}

func (c *Client) start() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return false
	}
	c.running = true
	return true
}

// Close lets Run log out and return; it does not wait for that. Messages that are not settled stay in the Queue.
func (c *Client) Close() {
	c.closeOnce.Do(func() { close(c.closed) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		c.abandon()
	}
}

// end answers everybody who waits. The Closed event is the last one.
func (c *Client) end(e *Ending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandon()
	event := ConnectionEvent{State: Closed}
	if e != nil {
		event.Reason, event.Code, event.Err = e.Reason, e.Code, e.Err
	}
	c.tellConnection(event)
}

// abandon runs under mu.
func (c *Client) abandon() {
	if c.over {
		return
	}
	c.over = true
	for uuid, o := range c.handles {
		o.abandon()
		delete(c.handles, uuid)
	}
	for id, answer := range c.pulls {
		answer <- core.Pulled{Err: ErrClosed}
		delete(c.pulls, id)
	}
}

// step gives the machine an input and carries out what it decides.
func (c *Client) step(input func(now time.Time)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	input(time.Now())
	c.apply()
	poke(c.wake)
}

// apply carries out the machine's effects, in order. It runs under mu and does not block.
func (c *Client) apply() {
	for _, effect := range c.machine.Take() {
		switch e := effect.(type) {
		case core.Write:
			if c.link != nil {
				c.link.send(e.Type, e.Message)
			}
		case core.Probe:
			c.probe = true
		case core.Changed:
			c.tellState(changeOf(e))
		case core.Settled:
			if o := c.handles[e.Message.Uuid]; o != nil {
				delete(c.handles, e.Message.Uuid)
				o.settle(changeOf(e.Changed))
			}
		case core.Forget:
			c.backlog.add(func() { c.queueResult(c.queue.Remove(e.UUID)) })
		case core.KeepDraft:
			c.backlog.add(func() { c.queueResult(c.queue.Save(pendingOf(e.Message, e.Reason))) })
		case core.Release:
			c.backlog.add(func() { c.deliver(e) })
		case core.Receipt:
			c.tellReceipt(Receipt(e))
		case core.Standing:
			c.tellStanding(Standing(e))
		case core.Synced:
			c.tellConnection(ConnectionEvent{State: Synced})
		case core.MarksChanged:
			poke(c.marksDirty)
		case core.Pulled:
			if answer := c.pulls[e.ID]; answer != nil {
				delete(c.pulls, e.ID)
				answer <- e
			}
		case core.Alarm:
			c.tellAlarm(Alarm{Kind: string(e.Kind), ConvID: e.ConvID, From: e.From, To: e.To})
		}
	}
}

// deliver runs in the backlog: the message is confirmed once the application has taken it.
func (c *Client) deliver(e core.Release) {
	if c.cfg.Handlers.OnMessage != nil {
		c.cfg.Handlers.OnMessage(messageOf(e.Message))
	}
	c.step(func(now time.Time) { c.machine.Consumed(now, e.Message.ConvId, e.Message.Seq) })
}

// queueResult runs in the backlog. A message that could not be removed is sent again by the next run, where the server
// recognises it by its uuid.
func (c *Client) queueResult(err error) {
	if err != nil && c.cfg.Handlers.OnAlarm != nil {
		c.cfg.Handlers.OnAlarm(Alarm{Kind: "queue", Err: err})
	}
}

func (c *Client) tellState(s StateChange) {
	if f := c.cfg.Handlers.OnState; f != nil {
		c.backlog.add(func() { f(s) })
	}
}

func (c *Client) tellReceipt(r Receipt) {
	if f := c.cfg.Handlers.OnReceipt; f != nil {
		c.backlog.add(func() { f(r) })
	}
}

func (c *Client) tellStanding(s Standing) {
	if f := c.cfg.Handlers.OnStanding; f != nil {
		c.backlog.add(func() { f(s) })
	}
}

func (c *Client) tellConnection(e ConnectionEvent) {
	if f := c.cfg.Handlers.OnConnection; f != nil {
		c.backlog.add(func() { f(e) })
	}
}

func (c *Client) tellAlarm(a Alarm) {
	c.log.Warn("alarm", "kind", a.Kind, "conv", a.ConvID, "from", a.From, "to", a.To, "err", a.Err)
	if f := c.cfg.Handlers.OnAlarm; f != nil {
		c.backlog.add(func() { f(a) })
	}
}

// saveMarks persists the watermarks, not more often than marksEvery, until stop.
func (c *Client) saveMarks(stop <-chan struct{}) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-c.marksDirty:
		case <-stop:
			return
		}
		pause.Reset(marksEvery)
		select {
		case <-pause.C:
		case <-stop:
			return
		}
		c.saveMarksNow()
	}
}

func (c *Client) saveMarksNow() {
	c.mu.Lock()
	m := c.machine.Marks()
	c.mu.Unlock()
	if m.UID == "" {
		return
	}
	if err := c.watermarks.Save(Marks{UID: m.UID, SinceMs: m.SinceMs, Conversations: m.Conversations}); err != nil {
		c.tellAlarm(Alarm{Kind: "watermarks", Err: err})
	}
}
