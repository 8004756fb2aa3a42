package client

import (
	"sync"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
)

// Pending is a message as a Queue keeps it.
type Pending struct {
	UUID     string    `json:"uuid"`
	To       string    `json:"to"`
	Type     int32     `json:"type,omitempty"`
	Content  string    `json:"content,omitempty"`
	Body     []byte    `json:"body,omitempty"`
	QueuedAt time.Time `json:"queued_at"`
	// Failed is why it was given up; empty while it is to be sent.
	Failed string `json:"failed,omitempty"`
}

func pendingOf(up *clientv1.MessageUp, failed string) Pending {
	return Pending{
		UUID: up.Uuid, To: up.ReceiverId, Type: up.Type, Content: up.Content, Body: up.Body,
		QueuedAt: time.UnixMilli(up.SentAtMs), Failed: failed,
	}
}

func (p *Pending) up() *clientv1.MessageUp {
	return &clientv1.MessageUp{
		Uuid: p.UUID, ReceiverId: p.To, Type: p.Type, Content: p.Content, Body: p.Body, SentAtMs: p.QueuedAt.UnixMilli(),
	}
}

// Queue keeps the messages that are not settled, and the failed ones as drafts, so that another run can go on with
// them. It must be safe for concurrent use. One Queue belongs to one user and one Client at a time.
type Queue interface {
	// Load returns everything in the order in which it was first saved. It is called once, before anything else.
	Load() ([]Pending, error)
	// Save adds a message, or replaces the one with its uuid in its place. Once it returns, the message must survive what
	// the Queue promises to survive: only then is it sent.
	Save(p Pending) error
	// Remove forgets a message; one that is not there is no error.
	Remove(uuid string) error
	// Close ends the use of the Queue, not what is in it.
	Close() error
}

// MemoryQueue is a Queue that lives as long as the process. A later Client of the same process can go on with it.
type MemoryQueue struct {
	mu      sync.Mutex
	pending []Pending
}

// Load returns what an earlier Client left.
func (q *MemoryQueue) Load() ([]Pending, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]Pending(nil), q.pending...), nil
}

// Save adds or replaces.
func (q *MemoryQueue) Save(p Pending) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = withPending(q.pending, p)
	return nil
}

// Remove forgets.
func (q *MemoryQueue) Remove(uuid string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending, _ = withoutPending(q.pending, uuid)
	return nil
}

// Close does nothing.
func (q *MemoryQueue) Close() error { return nil }

// withPending replaces the entry with p's uuid, or appends p.
func withPending(list []Pending, p Pending) []Pending {
	for i := range list {
		if list[i].UUID == p.UUID {
			list[i] = p
			return list
		}
	}
	return append(list, p)
}

// withoutPending removes the entry with this uuid. The first is the one that is nearly always meant.
func withoutPending(list []Pending, uuid string) (rest []Pending, found bool) {
	for i := range list {
		if list[i].UUID == uuid {
			copy(list[i:], list[i+1:])
			list[len(list)-1] = Pending{}
			return list[:len(list)-1], true
		}
	}
	return list, false
}
