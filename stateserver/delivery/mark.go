package delivery

import (
	"slices"
	"sync"
	"time"
)

// compactMin is how many settled ids may lie behind an unsettled one before they are dropped; below it a walk costs nothing.
const compactMin = 1024

// marks finds the delivery mark: the highest id such that everything this node numbered at or below it is settled. Its
// size is that of what is unsettled, however long one id stays so. It has no clock; now is passed in.
type marks struct {
	mu sync.Mutex
	// Guarded by mu. ids ascends from head on; an id that is not in open is settled.
	ids  []int64
	head int
	open map[int64]time.Time
	// highest is the highest id ever begun, mark the highest value ever returned.
	highest, mark int64
}

func newMarks() *marks { return &marks{open: make(map[int64]time.Time)} }

// begin adds ids that the mark must not pass; doubled ones are ignored. late counts those that came too late: the mark
// has passed them, because a higher id was begun and settled before.
func (m *marks) begin(ids []int64, now time.Time) (late int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if _, ok := m.open[id]; ok {
			continue
		}
		if id <= m.mark {
			late++
			continue
		}
		m.open[id] = now
		if n := len(m.ids); n == m.head || m.ids[n-1] < id {
			m.ids = append(m.ids, id)
		} else if at, found := slices.BinarySearch(m.ids[m.head:], id); !found {
			// Two committers may begin in another order than they numbered.
			m.ids = slices.Insert(m.ids, m.head+at, id)
		}
		m.highest = max(m.highest, id)
	}
	return late
}

// settle takes ids out; unknown ones (of other nodes) are ignored.
func (m *marks) settle(ids ...int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		delete(m.open, id)
	}
	for m.head < len(m.ids) {
		if _, ok := m.open[m.ids[m.head]]; ok {
			break
		}
		m.head++
	}
	if m.head == len(m.ids) {
		m.mark = max(m.mark, m.highest)
	} else {
		m.mark = max(m.mark, m.ids[m.head]-1)
	}
	if len(m.ids) > 2*len(m.open)+compactMin {
		m.compact()
	}
}

func (m *marks) compact() {
	kept := m.ids[:0]
	for _, id := range m.ids[m.head:] {
		if _, ok := m.open[id]; ok {
			kept = append(kept, id)
		}
	}
	m.ids, m.head = kept, 0
}

// current is the mark; 0 = nothing was settled yet.
func (m *marks) current() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mark
}

// lag is how long the oldest unsettled id has been so.
func (m *marks) lag(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.head == len(m.ids) {
		return 0
	}
	// The head is always open: settle moves it past what is not.
	return now.Sub(m.open[m.ids[m.head]])
}
