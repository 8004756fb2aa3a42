package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
)

const (
	// heartbeatDefault is for a gateway that names no interval.
	heartbeatDefault = 30 * time.Second
	// heartbeatMin keeps a wrong LOGIN_REPLY from turning the client into a flood.
	heartbeatMin = time.Second
)

var errSilent = errors.New("the server is silent: a heartbeat went unanswered")

// session is the life of one connection, driven by run.
type session struct {
	c *Client
	l *link

	beatEvery time.Duration
	nextBeat  time.Time
	// The heartbeat that is not answered yet; zero = none.
	beatAt time.Time

	// RECONNECT: when to dial the next connection, and what came of it.
	replaceAt   time.Time
	replacement chan *link
}

// session drives a connection until it ends, or until another one has taken its place, which it returns.
func (c *Client) session(ctx context.Context, l *link) (next *link, ending *Ending) {
	s := &session{c: c, l: l, beatEvery: heartbeatDefault}
	if ms := l.reply.HeartbeatIntervalMs; ms > 0 {
		s.beatEvery = max(time.Duration(ms)*time.Millisecond, heartbeatMin)
	}
	s.nextBeat = time.Now().Add(s.beatEvery)

	dialling, cancel := context.WithCancel(ctx)
	defer cancel()
	var both sync.WaitGroup
	c.attach(l, &both)
	next = s.run(dialling)
	if ctx.Err() != nil {
		c.takeLeave(l)
	}
	c.detach(l)
	if ending = l.cause(); ending == nil {
		ending = &Ending{Err: errLinkClosed}
	}
	if next == nil && s.replacement != nil {
		// This one ended before the next was ready, as a gateway does it that sees the next one's login.
		if ending.Final() {
			cancel()
		}
		if next = <-s.replacement; next != nil && ending.Final() {
			_ = next.nc.Close() // Nothing was sent on it but its login.
			next = nil
		}
	}
	if next == nil {
		l.shut(&both)
		return nil, ending
	}
	c.elsewhere.Go(func() { l.shut(&both) })
	return next, ending
}

// takeLeave confirms what the application takes within lingerFor: others wait to hear of it. Close logs out as well.
func (c *Client) takeLeave(l *link) {
	taken := make(chan struct{})
	c.backlog.add(func() { close(taken) })
	timer := time.NewTimer(lingerFor)
	defer timer.Stop()
	select {
	case <-taken:
	case <-timer.C:
	case <-l.ended:
		return
	}
	c.step(func(now time.Time) { c.machine.Flush(now) })
	select {
	case <-c.closed:
		l.send(clientv1.CommandType_LOGOUT, &clientv1.Logout{})
	default:
	}
}

// attach makes l the connection that the machine writes to, and starts its reader and writer, which end with the link.
func (c *Client) attach(l *link, both *sync.WaitGroup) {
	c.step(func(now time.Time) {
		c.link, c.probe = l, false
		c.tellConnection(ConnectionEvent{
			State: Connected, UID: l.reply.Uid, DeviceID: l.reply.DeviceId, ConnID: l.reply.ConnId,
		})
		c.machine.Connected(now, l.reply.Uid, int(l.reply.GetLimits().GetFrameBytes()))
	})
	both.Go(l.write)
	both.Go(func() { c.receive(l) })
}

// detach takes l away from the machine, before anything else is attached.
func (c *Client) detach(l *link) {
	c.step(func(now time.Time) {
		if c.link == l {
			c.link = nil
			c.machine.Disconnected(now)
		}
	})
}

// receive is the reader: it ends with the link.
func (c *Client) receive(l *link) {
	for _, command := range l.early {
		c.take(l, command)
	}
	l.early = nil
	for {
		f, err := l.next()
		if err != nil {
			l.end(endingOf(err))
			return
		}
		if c.backlog.full() {
			l.setBlocked(true)
			c.backlog.room(l.ended)
			l.setBlocked(false)
		}
		c.take(l, f.Payload)
	}
}

// take handles one command of the server.
func (c *Client) take(l *link, command []byte) {
	cmd := &clientv1.Command{}
	if err := cmd.UnmarshalVT(command); err != nil {
		l.end(&Ending{Reason: reason.BadCommand.String(), Err: fmt.Errorf("decode command: %w", err)})
		return
	}
	var err error
	switch cmd.Type {
	case clientv1.CommandType_KICK:
		err = c.takeKick(l, cmd)
	case clientv1.CommandType_RECONNECT:
		err = c.takeReconnect(l, cmd)
	case clientv1.CommandType_ERROR:
		err = c.takeError(l, cmd)
	default:
		c.stepOn(l, cmd, &err)
	}
	if err != nil {
		c.log.Warn("command of the server ignored", "type", cmd.Type, "err", err)
	}
}

// stepOn gives the command to the machine, unless another connection has taken l's place.
func (c *Client) stepOn(l *link, cmd *clientv1.Command, err *error) {
	c.step(func(now time.Time) {
		if c.link == l {
			*err = c.machine.Command(now, cmd.Type, cmd.Data)
		}
	})
}

// takeKick obeys only on the connection that is meant: a KICK can be late.
func (c *Client) takeKick(l *link, cmd *clientv1.Command) error {
	var k clientv1.Kick
	if err := k.UnmarshalVT(cmd.Data); err != nil {
		return err
	}
	if k.ConnId == 0 || k.ConnId == l.reply.ConnId {
		l.end(endingOfKick(cmd.Code, &k))
	}
	return nil
}

func (c *Client) takeReconnect(l *link, cmd *clientv1.Command) error {
	var r clientv1.Reconnect
	if err := r.UnmarshalVT(cmd.Data); err != nil {
		return err
	}
	l.mu.Lock()
	l.replaceAt = time.Now().Add(time.Duration(r.AfterMs) * time.Millisecond)
	l.mu.Unlock()
	poke(c.wake)
	return nil
}

// takeError: one with a code announces the end, the rest is the machine's.
func (c *Client) takeError(l *link, cmd *clientv1.Command) error {
	var e clientv1.Error
	if err := e.UnmarshalVT(cmd.Data); err != nil {
		return err
	}
	if cmd.Code != 0 {
		l.end(endingOfError(cmd.Code, &e))
		return nil
	}
	c.log.Warn("command refused", "command", e.Command, "reason", e.Reason, "detail", e.Detail, "conv", e.ConvId)
	var err error
	c.stepOn(l, cmd, &err)
	return err
}

// run is the session loop. It returns the connection that takes the place of this one, or nil when this one ended.
func (s *session) run(ctx context.Context) *link {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(s.due()))
		select {
		case <-ctx.Done():
			return nil
		case <-s.l.ended:
			return nil
		case next := <-s.replacement:
			if next != nil {
				return next
			}
			s.replacement = nil
		case <-s.c.wake:
		case <-timer.C:
		}
		s.advance(ctx)
	}
}

// due is when advance has something to do, unless something happens before.
func (s *session) due() time.Time {
	at := s.nextBeat
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	if !s.beatAt.IsZero() {
		earlier(s.beatAt.Add(s.c.cfg.HeartbeatTimeout))
	}
	if s.replacement == nil {
		earlier(s.replaceAt)
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if t, ok := s.c.machine.Deadline(); ok {
		earlier(t)
	}
	return at
}

// advance does what is due: the machine's timers, heartbeats, the next connection after a RECONNECT.
func (s *session) advance(ctx context.Context) {
	s.c.mu.Lock()
	now := time.Now()
	s.c.machine.Tick(now)
	s.c.apply()
	probe := s.c.probe
	s.c.probe = false
	s.c.mu.Unlock()

	s.l.mu.Lock()
	if at := s.l.replaceAt; !at.IsZero() {
		s.replaceAt, s.l.replaceAt = at, time.Time{}
	}
	s.l.mu.Unlock()

	s.beat(now, probe)
	if !s.replaceAt.IsZero() && !now.Before(s.replaceAt) && s.replacement == nil {
		s.replace(ctx)
	}
}

// beat sends a heartbeat when its time has come, or as a probe, and ends a connection that does not answer. Whatever
// arrives is an answer.
func (s *session) beat(now time.Time, probe bool) {
	if !s.beatAt.IsZero() {
		switch heard := s.l.silentSince(now); {
		case !heard.Before(s.beatAt):
			s.beatAt = time.Time{}
		case now.Sub(s.beatAt) >= s.c.cfg.HeartbeatTimeout:
			s.l.end(&Ending{Err: errSilent})
			return
		}
	}
	if now.Before(s.nextBeat) && !probe {
		return
	}
	s.nextBeat = now.Add(s.beatEvery)
	if s.beatAt.IsZero() {
		s.beatAt = now
		s.l.send(clientv1.CommandType_HEARTBEAT, nil)
	}
}

// replace dials the next connection while this one still works. Should that fail, this one goes on until the server
// closes it, and the ordinary way of reconnecting follows.
func (s *session) replace(ctx context.Context) {
	s.replaceAt = time.Time{}
	result := make(chan *link, 1)
	s.replacement = result
	s.c.elsewhere.Go(func() {
		next, ending := s.c.connect(ctx)
		if ending != nil {
			s.c.log.Info("next connection after RECONNECT failed", "err", ending)
		}
		result <- next
	})
}
