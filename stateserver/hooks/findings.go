package hooks

import "sync"

// findingsHalf bounds what is remembered between the delivery of a message and its turn at the hook, in two halves of
// which the older one is forgotten: together some seconds of traffic. What is forgotten is looked up again.
const (
	findingsHalf     = 1 << 15
	findingsHalfUIDs = 1 << 18
)

// Findings are the users whom the delivery found offline, by message. It is safe for concurrent use.
type Findings struct {
	mu sync.Mutex
	// Guarded by mu.
	young, old map[int64][]string
	uids       int
}

// NewFindings makes an empty one.
func NewFindings() *Findings { return &Findings{young: make(map[int64][]string)} }

// Add notes who of a message's receivers was offline; maybe nobody.
func (f *Findings) Add(msgID int64, offline []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.young) >= findingsHalf || f.uids >= findingsHalfUIDs {
		f.young, f.old, f.uids = make(map[int64][]string), f.young, 0
	}
	f.young[msgID] = offline
	f.uids += len(offline)
}

// of says what is known of a message.
func (f *Findings) of(msgID int64) (offline []string, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if offline, known = f.young[msgID]; !known {
		offline, known = f.old[msgID]
	}
	return offline, known
}

// forget is for messages that were told.
func (f *Findings) forget(msgID int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if uids, ok := f.young[msgID]; ok {
		f.uids -= len(uids)
		delete(f.young, msgID)
	}
	delete(f.old, msgID)
}
