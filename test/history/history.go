// Package history reads what every client saw and what the store holds, and checks the promises against it: nothing acked
// is lost, one message per uuid, dense and increasing numbers, the order of each sender, each receiver exactly once.
package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/sluice-im/sluice/stateserver/store"
)

// lineMax bounds one line of a transcript.
const lineMax = 1 << 20

// Event is one line of `sluice chat --json`.
type Event struct {
	Event  string `json:"event"`
	AtMs   int64  `json:"at_ms"`
	State  string `json:"state"`
	UUID   string `json:"uuid"`
	To     string `json:"to"`
	From   string `json:"from"`
	Conv   string `json:"conv"`
	Seq    int64  `json:"seq"`
	MsgID  string `json:"msg_id"`
	Text   string `json:"text"`
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

// Read reads a transcript. A last line that was cut off by a kill is left out.
func Read(file string) ([]Event, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var events []Event
	var bad error
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, lineMax)
	for lines.Scan() {
		if bad != nil {
			return nil, bad
		}
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			bad = fmt.Errorf("%s: line %q: %w", file, lines.Text(), err)
			continue
		}
		events = append(events, e)
	}
	return events, lines.Err()
}

// Client is what one user's client saw.
type Client struct {
	UID    string
	Events []Event
}

// rank orders the states; FAILED may be followed by STORED, never by anything lower than what was reached.
var rank = map[string]int{"LOCAL": 0, "SENT": 1, "FAILED": 2, "STORED": 3, "DELIVERED": 4, "READ": 5}

// Outcomes are the final states of a client's own messages by uuid, and the numbers of those that were stored.
type Outcomes struct {
	State map[string]string
	Seq   map[string]int64
}

// Check holds the clients' transcripts against the rows of the one conversation that they share and returns everything
// that does not hold. Texts are the senders' own numbers, 1, 2, 3 …, so that their order can be seen.
func Check(clients []Client, rows []store.Message) []error {
	c := &checker{bySeq: map[int64]store.Message{}, byUUID: map[string]store.Message{}}
	c.store(rows)
	outcomes := map[string]Outcomes{}
	for _, cl := range clients {
		outcomes[cl.UID] = c.sender(cl)
	}
	for _, cl := range clients {
		c.receiver(cl, outcomes[cl.UID], rows)
	}
	return c.errs
}

type checker struct {
	errs   []error
	bySeq  map[int64]store.Message
	byUUID map[string]store.Message
}

// errsMax keeps a report readable.
const errsMax = 20

func (c *checker) fail(format string, args ...any) {
	if len(c.errs) < errsMax {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

// store: numbers are dense from 1, one row per uuid, and each sender's own numbers increase.
func (c *checker) store(rows []store.Message) {
	last := map[string]int{}
	for i, m := range rows {
		if m.Seq != int64(i+1) {
			c.fail("store: row %d has seq %d: numbers are not dense", i+1, m.Seq)
		}
		key := m.FromUID + "/" + m.UUID
		if _, twice := c.byUUID[key]; twice {
			c.fail("store: %s is there twice", key)
		}
		c.byUUID[key], c.bySeq[m.Seq] = m, m
		n, err := strconv.Atoi(m.Content)
		if err != nil {
			continue
		}
		if n <= last[m.FromUID] {
			c.fail("store: %s's message %d has a number after %d", m.FromUID, n, last[m.FromUID])
		}
		last[m.FromUID] = n
	}
}

// sender: states move forward only, every message has one terminal outcome, and what was acked is stored as it was acked.
func (c *checker) sender(cl Client) Outcomes {
	o := Outcomes{State: map[string]string{}, Seq: map[string]int64{}}
	for _, e := range cl.Events {
		if e.Event != "state" {
			continue
		}
		r, known := rank[e.State]
		if !known {
			c.fail("%s: unknown state %q", cl.UID, e.State)
		}
		if before, ok := o.State[e.UUID]; ok && r < rank[before] && (before != "SENT" || e.State != "LOCAL") {
			c.fail("%s: %s went back from %s to %s", cl.UID, e.UUID, before, e.State)
		}
		o.State[e.UUID] = e.State
		if e.Seq > 0 {
			if s := o.Seq[e.UUID]; s > 0 && s != e.Seq {
				c.fail("%s: %s was acked as %d and as %d", cl.UID, e.UUID, s, e.Seq)
			}
			o.Seq[e.UUID] = e.Seq
		}
	}
	for uuid, state := range o.State {
		row, stored := c.byUUID[cl.UID+"/"+uuid]
		switch {
		case rank[state] < rank["FAILED"]:
			c.fail("%s: %s has no outcome: %s", cl.UID, uuid, state)
		case rank[state] >= rank["STORED"] && !stored:
			c.fail("%s: %s was acked and is not in the store", cl.UID, uuid)
		case stored && o.Seq[uuid] > 0 && row.Seq != o.Seq[uuid]:
			c.fail("%s: %s was acked as %d and is stored as %d", cl.UID, uuid, o.Seq[uuid], row.Seq)
		}
	}
	return o
}

// receiver: each of the others' messages once, in order, as it is stored.
func (c *checker) receiver(cl Client, own Outcomes, rows []store.Message) {
	seen := map[int64]bool{}
	var last int64
	for _, e := range cl.Events {
		if e.Event != "message" || e.From == cl.UID {
			continue
		}
		if seen[e.Seq] {
			c.fail("%s: received seq %d twice", cl.UID, e.Seq)
		}
		if e.Seq <= last {
			c.fail("%s: received seq %d after %d", cl.UID, e.Seq, last)
		}
		seen[e.Seq], last = true, e.Seq
		row, ok := c.bySeq[e.Seq]
		if !ok || row.UUID != e.UUID || row.Content != e.Text || row.FromUID != e.From {
			c.fail("%s: received seq %d %s %q from %s, the store has %s %q from %s", cl.UID, e.Seq, e.UUID, e.Text, e.From, row.UUID, row.Content, row.FromUID)
		}
	}
	missing := 0
	for _, m := range rows {
		if m.FromUID != cl.UID && !seen[m.Seq] {
			missing++
		}
	}
	if missing > 0 {
		c.fail("%s: %d stored messages never came", cl.UID, missing)
	}
	for uuid := range own.State {
		if row, ok := c.byUUID[cl.UID+"/"+uuid]; ok && seen[row.Seq] {
			c.fail("%s: received its own message %s", cl.UID, uuid)
		}
	}
}
