package main

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-im/sluice/examples/documents-client/protocol"
)

// pendingMax bounds the queue: beyond it no line is read until an answer has made room.
const pendingMax = 1000

// item is one message of the user without a final answer.
type item struct {
	UUID string `json:"uuid"`
	// Payload is the MessageUp; a resend repeats it byte for byte, uuid included.
	Payload []byte `json:"payload"`

	sentAt time.Time
	sends  int
}

// content is for what is printed.
func (i *item) content() string {
	var m protocol.MessageUp
	if err := proto.Unmarshal(i.Payload, &m); err != nil {
		return ""
	}
	return m.GetContent()
}

// pendingQueue holds the user's messages in the order in which they were written. Only the head is ever on its way, so the
// server gets them in that order, over any number of connections. With a path it survives the end of the program.
type pendingQueue struct {
	items    []*item
	inflight *item
	path     string
}

// load reads what an earlier run has left.
func (q *pendingQueue) load() error {
	if q.path == "" {
		return nil
	}
	b, err := os.ReadFile(q.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(b, &q.items)
}

// save writes the queue beside its file and puts it in its place, so that a crash leaves the one or the other.
func (q *pendingQueue) save() error {
	if q.path == "" {
		return nil
	}
	b, err := json.Marshal(q.items)
	if err != nil {
		return err
	}
	if err := os.WriteFile(q.path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(q.path+".new", q.path)
}

func (q *pendingQueue) append(i *item) error {
	q.items = append(q.items, i)
	return q.save()
}

func (q *pendingQueue) full() bool { return len(q.items) >= pendingMax }

// head is the message that may be on its way; nil when there is none.
func (q *pendingQueue) head() *item {
	if len(q.items) == 0 {
		return nil
	}
	q.inflight = q.items[0]
	return q.inflight
}

// settle removes the message in flight if this is its uuid: it was stored, or refused for good.
func (q *pendingQueue) settle(uuid string) (done *item, err error) {
	if q.inflight == nil || q.inflight.UUID != uuid {
		return nil, nil
	}
	done, q.inflight = q.inflight, nil
	q.items = q.items[1:]
	return done, q.save()
}

// lost says that the connection is gone, and the answer with it.
func (q *pendingQueue) lost() { q.inflight = nil }
