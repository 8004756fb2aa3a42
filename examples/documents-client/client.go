package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-im/sluice/examples/documents-client/protocol"
)

const (
	// look is how often the head's timeout is looked at.
	look = 250 * time.Millisecond
	// writeMax bounds one write; a line that takes nothing for so long is dead.
	writeMax = 5 * time.Second
	// pingEvery keeps a quiet connection from being closed as idle.
	pingEvery = 25 * time.Second
	// reconnectMin doubles up to reconnectMax, jittered.
	reconnectMin, reconnectMax = 200 * time.Millisecond, 5 * time.Second
	// commandMax is the largest command that this client takes.
	commandMax = 64 << 10
)

// client is everything of one user; one goroutine owns it.
type client struct {
	url, token, to string
	timeout        time.Duration
	pending        pendingQueue
	conn           *websocket.Conn
	out            io.Writer
}

// run sends every line until there are none and the queue is empty, or until ctx ends.
func (c *client) run(ctx context.Context, lines <-chan string) error {
	wait := reconnectMin
	for {
		header := http.Header{"Authorization": {"Bearer " + c.token}}
		conn, resp, err := websocket.DefaultDialer.DialContext(ctx, c.url, header)
		if resp != nil {
			_ = resp.Body.Close() // the connection is not its body
		}
		switch {
		case err == nil:
			wait = reconnectMin
			if lines, err = c.serve(ctx, conn, lines); err == nil {
				return nil
			}
		case resp != nil && (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden):
			return fmt.Errorf("refused: %s", resp.Status)
		}
		c.printf("line lost: %v", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait/2 + rand.N(wait/2)):
			wait = min(2*wait, reconnectMax)
		}
	}
}

// serve works on one connection until it ends (an error), or everything is sent (none). It returns the lines that are
// still to come: nil when the last one was read.
func (c *client) serve(ctx context.Context, conn *websocket.Conn, lines <-chan string) (<-chan string, error) {
	c.conn = conn
	commands, failed := make(chan *protocol.Command), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); failed <- read(ctx, conn, commands) }()
	defer func() { cancel(); _ = conn.Close(); <-done; c.pending.lost() }()

	ticks, pings := time.NewTicker(look), time.NewTicker(pingEvery)
	defer ticks.Stop()
	defer pings.Stop()
	if err := c.sendHead(); err != nil { // what an earlier connection, or an earlier run, has left
		return lines, err
	}
	for lines != nil || len(c.pending.items) > 0 {
		input := lines
		if c.pending.full() {
			input = nil
		}
		var err error
		select {
		case line, ok := <-input:
			if !ok {
				lines = nil
				continue
			}
			err = c.enqueueAndTrySend(line)
		case cmd := <-commands:
			err = c.receive(cmd)
		case <-ticks.C:
			err = c.resendIfTimeout()
		case <-pings.C:
			err = conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeMax))
		case err = <-failed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return lines, err
		}
	}
	return nil, nil
}

// read passes commands on until the connection or ctx ends.
func read(ctx context.Context, conn *websocket.Conn, commands chan<- *protocol.Command) error {
	conn.SetReadLimit(commandMax)
	for {
		kind, b, err := conn.ReadMessage()
		if err != nil {
			return err
		}
		cmd := &protocol.Command{}
		if kind != websocket.BinaryMessage {
			return errors.New("a text message")
		}
		if err := proto.Unmarshal(b, cmd); err != nil {
			return fmt.Errorf("not a Command: %w", err)
		}
		select {
		case commands <- cmd:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// enqueueAndTrySend is the user's click: into the queue, and out if nothing else is on its way.
func (c *client) enqueueAndTrySend(content string) error {
	m := &protocol.MessageUp{Uuid: uuid.NewString(), Type: 1, Content: content, ReceiverId: c.to}
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	idle := c.pending.inflight == nil
	if err := c.pending.append(&item{UUID: m.GetUuid(), Payload: b}); err != nil || !idle {
		return err
	}
	return c.sendHead()
}

// sendHead sends the first message of the queue.
func (c *client) sendHead() error {
	i := c.pending.head()
	if i == nil {
		return nil
	}
	i.sentAt = time.Now()
	i.sends++
	c.printf("sent %s", i.UUID)
	return c.sendProto(&protocol.Command{Type: protocol.CommandType_MESSAGEUP, Data: i.Payload})
}

// resendIfTimeout sends the head again when its answer has not come in time.
func (c *client) resendIfTimeout() error {
	if i := c.pending.inflight; i == nil || time.Since(i.sentAt) < c.timeout {
		return nil
	}
	return c.sendHead()
}

// receive handles one command. As the source document has it, an ACK_OK sends the head whichever message it was for, and
// an ACK_RETRY sends at once: one answer too many for one message, and this client would send every later one twice. That
// is why the gateway answers each frame exactly once, holds its own RETRYs back, and drops what comes too late.
func (c *client) receive(cmd *protocol.Command) error {
	if cmd.GetType() != protocol.CommandType_MESSAGEACK {
		return nil // newer than this client
	}
	var ack protocol.MessageAck
	if err := proto.Unmarshal(cmd.GetData(), &ack); err != nil || ack.GetUuid() == "" {
		return err
	}
	switch ack.GetStatus() {
	case protocol.MessageAckStatus_ACK_RETRY:
		c.printf("retry %s", ack.GetUuid())
	default: // ACK_OK, or ACK_FAIL: told to the user, and on with the next
		done, err := c.pending.settle(ack.GetUuid())
		if err != nil {
			return err
		}
		if done != nil {
			c.printf("%s %s sends=%d %s", outcome(ack.GetStatus()), ack.GetUuid(), done.sends, done.content())
		}
	}
	return c.sendHead()
}

func outcome(s protocol.MessageAckStatus) string {
	if s == protocol.MessageAckStatus_ACK_OK {
		return "ok"
	}
	return "failed"
}

func (c *client) sendProto(cmd *protocol.Command) error {
	b, err := proto.Marshal(cmd)
	if err != nil {
		return err
	}
	if err := c.conn.SetWriteDeadline(time.Now().Add(writeMax)); err != nil {
		return err
	}
	return c.conn.WriteMessage(websocket.BinaryMessage, b)
}

func (c *client) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(c.out, format+"\n", args...) // whoever reads along may have left
}
