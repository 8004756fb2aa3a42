package client

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/client/internal/core"
)

// pullMax bounds one Pull; the server answers with fewer where they would not fit.
const pullMax = 1000

// Draft is a message to send.
type Draft struct {
	// UUID identifies the message for ever: 1 to 64 printable ASCII characters. Empty: Send makes one.
	UUID string
	// To is a user id, or a group id (g:…).
	To   string
	Type int32
	// Content and Body together may have the frame limit less 2 KiB; Body is opaque to every server.
	Content string
	Body    []byte
}

// FailedDraft is a message that was given up, and why.
type FailedDraft struct {
	Draft
	Reason string
}

// Send puts a message behind the others and returns when the Queue has saved it. A uuid that is queued already returns
// the same handle and changes nothing. A uuid that has FAILED is sent again by hand: it stays FAILED until it is stored.
func (c *Client) Send(d Draft) (*Outgoing, error) {
	if d.UUID == "" {
		d.UUID = uuid.NewString()
	}
	switch {
	case !ident.ValidUUID(d.UUID):
		return nil, fmt.Errorf("send: uuid %q is not 1 to %d printable ASCII characters", d.UUID, ident.UUIDBytesMax)
	case !ident.ValidReceiver(d.To):
		return nil, fmt.Errorf("send: receiver %q is neither a user id nor a group id", d.To)
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	up, o, err := c.prepare(d)
	if o != nil || err != nil {
		return o, err
	}
	// Outside of mu: a disk may take its time, and the connection must not wait for it.
	if err := c.queue.Save(pendingOf(up, "")); err != nil {
		return nil, fmt.Errorf("send: save in queue: %w", err)
	}
	return c.enqueue(up)
}

// prepare says whether the message may be queued, or returns the handle of the one that is.
func (c *Client) prepare(d Draft) (*clientv1.MessageUp, *Outgoing, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, nil, ErrClosed
	}
	up := &clientv1.MessageUp{
		Uuid: d.UUID, Type: d.Type, Content: d.Content, ReceiverId: d.To, Body: d.Body,
		SessionId: c.sessionID, ClientSeq: c.sent + 1, SentAtMs: time.Now().UnixMilli(),
	}
	known, err := c.machine.Check(up)
	if err != nil {
		return nil, nil, fmt.Errorf("send: %w", err)
	}
	if known {
		return nil, c.handles[d.UUID], nil
	}
	c.sent++
	return up, nil, nil
}

func (c *Client) enqueue(up *clientv1.MessageUp) (*Outgoing, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := newOutgoing(up.Uuid)
	if c.over {
		// It is saved: the next run sends it.
		o.abandon()
		return o, nil
	}
	c.handles[up.Uuid] = o
	if _, err := c.machine.Enqueue(time.Now(), up); err != nil {
		delete(c.handles, up.Uuid)
		c.backlog.add(func() { c.queueResult(c.queue.Remove(up.Uuid)) })
		return nil, fmt.Errorf("send: %w", err)
	}
	c.apply()
	poke(c.wake)
	return o, nil
}

// Unsettled returns the handles of everything that has no outcome yet, also of what an earlier run left in the Queue.
func (c *Client) Unsettled() []*Outgoing {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*Outgoing
	for _, up := range c.machine.Queued() {
		if o := c.handles[up.Uuid]; o != nil {
			list = append(list, o)
		}
	}
	return list
}

// Failed returns the messages that were given up, oldest first. Send with their uuid tries again, Discard forgets them.
func (c *Client) Failed() []FailedDraft {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []FailedDraft
	for up, why := range c.machine.Drafts() {
		d := Draft{UUID: up.Uuid, To: up.ReceiverId, Type: up.Type, Content: up.Content, Body: up.Body}
		list = append(list, FailedDraft{Draft: d, Reason: why})
	}
	return list
}

// Discard forgets a message that was given up; false if there is none with this uuid.
func (c *Client) Discard(uuid string) bool {
	var found bool
	c.step(func(time.Time) { found = c.machine.Discard(uuid) })
	return found
}

// MarkRead says that the user has seen the conversation up to seq. It may be called as often as one likes: only what is
// new is sent, and the last value after a reconnect again.
func (c *Client) MarkRead(convID string, seq int64) {
	c.step(func(now time.Time) { c.machine.MarkRead(now, convID, seq) })
}

// SetToken replaces the token: for the next login, and at once on the connection that is there, which then lives on
// beyond the old token's end. For a token that is renewed in good time; TokenSource is for those that have expired.
func (c *Client) SetToken(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = token
	if c.link != nil {
		c.link.send(clientv1.CommandType_TOKEN_REFRESH, &clientv1.TokenRefresh{Token: token})
	}
}

// Page is a piece of a conversation's history.
type Page struct {
	Messages []Message
	// FloorSeq: nothing at or below it exists for this user.
	FloorSeq int64
	// HasMore: there is more after the last of Messages.
	HasMore bool
}

// Pull reads up to limit (1 to 1000) messages of a conversation after a number, for showing history. It has nothing to
// do with what OnMessage gets. It fails with ErrOffline, ErrRefused, ErrNoAnswer, ErrQueueFull or ErrClosed.
func (c *Client) Pull(ctx context.Context, convID string, afterSeq int64, limit int) (Page, error) {
	answer, err := c.startPull(convID, afterSeq, min(max(limit, 1), pullMax))
	if err != nil {
		return Page{}, fmt.Errorf("pull %s: %w", convID, err)
	}
	select {
	case p := <-answer:
		if p.Err != nil {
			return Page{}, fmt.Errorf("pull %s: %w", convID, p.Err)
		}
		page := Page{FloorSeq: p.FloorSeq, HasMore: p.HasMore}
		for _, d := range p.Messages {
			page.Messages = append(page.Messages, messageOf(d))
		}
		return page, nil
	case <-ctx.Done():
		// The machine answers a channel with room for it, sooner or later.
		return Page{}, ctx.Err()
	}
}

func (c *Client) startPull(convID string, afterSeq int64, limit int) (<-chan core.Pulled, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil, ErrClosed
	}
	id, err := c.machine.History(time.Now(), convID, afterSeq, limit)
	if err != nil {
		return nil, err
	}
	answer := make(chan core.Pulled, 1)
	c.pulls[id] = answer
	c.apply()
	poke(c.wake)
	return answer, nil
}
