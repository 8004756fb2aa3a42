package stateclient

import "sync/atomic"

// flight is what a lane knows of one connection. It lives in the Peer, so that finding it costs no look-up and an idle
// connection costs no map entry.
type flight struct {
	// lane is where the connection's uplinks are, and where its next one goes while pending is not 0. It is changed
	// only under the mutex of the lane that it names before the change.
	lane atomic.Pointer[lane]

	// Guarded by lane.mu.

	// pending counts uplinks whose Answers call has not returned. It, not the chain, is what pins the connection:
	// another lane must not give its first answer while this one still gives its last.
	pending int32
	// head and tail are the chain of unanswered uplinks, in Seq order, as places in lane.slab; 0 = none.
	head, tail int32
	// version is the view in which lane was chosen.
	version uint32
	// announced is the lane.generation that last carried a Connect.
	announced uint32
	// refusedIn is the Submit that last refused the connection.
	refusedIn uint32
	// waiting says that the connection is in lane.waiting.
	waiting bool
	// calling says that a unary call of the connection is under way.
	calling bool
	// unclean says that a string of the Peer is not UTF-8, which would make the whole batch undecodable for a backend
	// that checks.
	unclean bool
}

// item is one uplink that was taken and is not answered.
type item struct {
	uplink Uplink
	// deadline and sentAt are relay time; sentAt 0 = not sent.
	deadline, sentAt int64
	// call tells the users of one slot apart.
	call uint64
	// early is an answer that came before that of an earlier uplink of the connection.
	early *answer
	// chain is the next uplink of the connection.
	chain int32
	// bucket is the wheel's bucket the item is in.
	bucket int32
	links  [2]link
	where  where
	// encoding says that the payload is being read for sending: the uplink must not be answered now, since its payload
	// would go back to its owner.
	encoding bool
}

// where names the list that an item is in, beside the wheel's.
type where uint8

const (
	// nowhere: behind another uplink of a connection whose calls go one by one.
	nowhere where = iota
	inQueue
	inSent
)

// link is a place in a doubly linked list; 0 = none.
type link struct{ prev, next int32 }

// The two lists that an item can be in at once.
const (
	orderLink = iota // lane.queue or lane.sent
	wheelLink        // a bucket of lane.wheel
)

// list is a doubly linked list through slab items.
type list struct{ head, tail int32 }

// slab holds the items of one lane. Place 0 is never used. It grows to what was needed once, at most lane.queueMax, and
// is used again from then on.
type slab struct {
	items []item
	free  int32
}

func newSlab() slab { return slab{items: make([]item, 1, 64)} }

// take returns an empty place. Pointers into items do not survive it.
func (s *slab) take() int32 {
	if i := s.free; i != 0 {
		s.free = s.items[i].chain
		s.items[i].chain = 0
		return i
	}
	s.items = append(s.items, item{})
	return int32(len(s.items) - 1)
}

func (s *slab) give(i int32) {
	s.items[i] = item{chain: s.free}
	s.free = i
}

func (s *slab) push(l *list, which int, i int32) {
	s.items[i].links[which] = link{prev: l.tail}
	if l.tail != 0 {
		s.items[l.tail].links[which].next = i
	} else {
		l.head = i
	}
	l.tail = i
}

func (s *slab) remove(l *list, which int, i int32) {
	k := s.items[i].links[which]
	if k.prev != 0 {
		s.items[k.prev].links[which].next = k.next
	} else {
		l.head = k.next
	}
	if k.next != 0 {
		s.items[k.next].links[which].prev = k.prev
	} else {
		l.tail = k.prev
	}
	s.items[i].links[which] = link{}
}
