package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/client"
)

// shownTextsMax bounds how many own messages are remembered with their text, to show it beside their states.
const shownTextsMax = 1000

// event is one line of --json. The event says which of the other fields have a meaning.
type event struct {
	// Event is connection, state, message, receipt, standing, alarm or error.
	Event string `json:"event"`
	// AtMs is this machine's clock.
	AtMs     int64  `json:"at_ms"`
	State    string `json:"state,omitempty"`
	UUID     string `json:"uuid,omitempty"`
	To       string `json:"to,omitempty"`
	From     string `json:"from,omitempty"`
	Conv     string `json:"conv,omitempty"`
	Seq      int64  `json:"seq,omitempty"`
	MsgID    string `json:"msg_id,omitempty"`
	Type     int32  `json:"type,omitempty"`
	Text     string `json:"text,omitempty"`
	UID      string `json:"uid,omitempty"`
	DeviceID string `json:"device_id,omitempty"`
	ConnID   string `json:"conn_id,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Detail   string `json:"detail,omitempty"`
	RetryMs  int64  `json:"retry_ms,omitempty"`
	// ReadSeq and Unread of a standing.
	ReadSeq int64 `json:"read_seq,omitempty"`
	Unread  int64 `json:"unread,omitempty"`
	// OutOfOrder: stored after a message that followed it.
	OutOfOrder bool `json:"out_of_order,omitempty"`
}

// transcript shows what happens, and knows what has happened.
type transcript struct {
	cmd *chatCmd
	// Set before the client runs.
	client *client.Client

	mu  sync.Mutex
	out io.Writer
	// failed is the first error of out; there is nobody to tell, so the client is ended.
	failed error
	// texts of own messages, and their uuids oldest first.
	texts map[string]string
	order []string

	// uid is whom the gateway takes this client for.
	uid       string
	connected bool
	received  int
	delivered int
	changed   chan struct{}
}

func newTranscript(c *chatCmd, out io.Writer) *transcript {
	return &transcript{cmd: c, out: out, texts: map[string]string{}, changed: make(chan struct{})}
}

func (t *transcript) handlers() client.Handlers {
	return client.Handlers{
		OnMessage: t.onMessage, OnState: t.onState, OnReceipt: t.onReceipt, OnStanding: t.onStanding,
		OnConnection: t.onConnection, OnAlarm: t.onAlarm,
	}
}

// show writes a line, as JSON or for people; change is what there is to remember of it.
func (t *transcript) show(e event, people string, change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change()
	close(t.changed)
	t.changed = make(chan struct{})
	if t.failed != nil {
		return
	}
	line := []byte(people)
	if t.cmd.JSON {
		e.AtMs = time.Now().UnixMilli()
		line, t.failed = json.Marshal(e)
	}
	if t.failed == nil && len(line) > 0 {
		_, t.failed = t.out.Write(append(line, '\n'))
	}
	if t.failed != nil {
		t.client.Close()
	}
}

func nothing() {}

func (t *transcript) onMessage(m client.Message) {
	t.show(event{
		Event: "message", Conv: m.ConvID, Seq: m.Seq, From: m.FromUID, UUID: m.UUID, Text: m.Content, Type: m.Type, MsgID: m.MsgID,
	}, fmt.Sprintf("%s: %s", t.speaker(m), printable(m.Content)), func() { t.received++ })
	if t.cmd.MarkRead {
		t.client.MarkRead(m.ConvID, m.Seq)
	}
}

// speaker is who says something, and where it is not clear, to whom: in a group, and when it is the user himself on another
// of his devices.
func (t *transcript) speaker(m client.Message) string {
	t.mu.Lock()
	own := m.FromUID == t.uid
	t.mu.Unlock()
	switch lower, higher, two := ident.Users(m.ConvID); {
	case ident.ValidGroup(m.ConvID):
		return m.FromUID + " in " + m.ConvID
	case two && own && lower == m.FromUID:
		return m.FromUID + " to " + higher
	case two && own:
		return m.FromUID + " to " + lower
	}
	return m.FromUID
}

// sending remembers the text of an own message, if its uuid is known before it is sent.
func (t *transcript) sending(d client.Draft) {
	if d.UUID == "" || t.cmd.JSON {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) >= shownTextsMax {
		delete(t.texts, t.order[0])
		t.order = t.order[1:]
	}
	t.texts[d.UUID] = d.Content
	t.order = append(t.order, d.UUID)
}

func (t *transcript) onState(s client.StateChange) {
	t.mu.Lock()
	text := t.texts[s.UUID]
	t.mu.Unlock()
	people := fmt.Sprintf("  [%s] %s", printable(shortened(text)), s.State)
	if s.Seq > 0 {
		people += fmt.Sprintf(" #%d", s.Seq)
	}
	if s.Reason != "" {
		people += " (" + s.Reason + ")"
	}
	t.show(event{
		Event: "state", UUID: s.UUID, To: s.To, State: s.State.String(), Reason: s.Reason, Conv: s.ConvID, Seq: s.Seq,
		MsgID: s.MsgID, OutOfOrder: s.OutOfOrder,
	}, people, func() {
		if s.State == client.Delivered {
			t.delivered++
		}
	})
}

func (t *transcript) onReceipt(r client.Receipt) {
	t.show(event{Event: "receipt", Conv: r.ConvID, UID: r.UID, Seq: r.Seq, State: r.State.String()}, "", nothing)
}

func (t *transcript) onStanding(s client.Standing) {
	people := ""
	if s.Unread > 0 {
		people = fmt.Sprintf("-- %d unread in %s", s.Unread, s.ConvID)
	}
	t.show(event{Event: "standing", Conv: s.ConvID, Seq: s.MaxSeq, ReadSeq: s.ReadSeq, Unread: s.Unread}, people, nothing)
}

func (t *transcript) onConnection(c client.ConnectionEvent) {
	e := event{
		Event: "connection", State: string(c.State), UID: c.UID, DeviceID: c.DeviceID, Reason: c.Reason,
		RetryMs: c.Retry.Milliseconds(),
	}
	people := "-- " + string(c.State)
	if c.State == client.Connected {
		e.ConnID = fmt.Sprint(c.ConnID)
		people += " as " + c.UID
	}
	if c.Err != nil {
		e.Detail = c.Err.Error()
	}
	if why := strings.Trim(c.Reason+": "+e.Detail, ": "); why != "" {
		people += " (" + printable(why) + ")"
	}
	if c.Retry > 0 {
		people += fmt.Sprintf(", again in %v", c.Retry.Round(time.Millisecond))
	}
	t.show(e, people, func() {
		if c.State == client.Connected {
			t.connected, t.uid = true, c.UID
		}
	})
}

func (t *transcript) onAlarm(a client.Alarm) {
	e := event{Event: "alarm", Reason: a.Kind, Conv: a.ConvID, Seq: a.From}
	if a.Err != nil {
		e.Detail = a.Err.Error()
	}
	t.show(e, fmt.Sprintf("-- alarm: %s %s %s", a.Kind, a.ConvID, e.Detail), nothing)
}

// complain is about a line of input.
func (t *transcript) complain(err error) {
	t.show(event{Event: "error", Detail: err.Error()}, "-- "+printable(err.Error()), nothing)
}

// broken is why nothing can be shown any more; nil as long as it can.
func (t *transcript) broken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// wait returns when there was a connection, that many messages were received, and that many own ones delivered.
func (t *transcript) wait(ctx context.Context, received, delivered int) error {
	for {
		t.mu.Lock()
		enough := t.connected && t.received >= received && t.delivered >= delivered
		changed := t.changed
		t.mu.Unlock()
		if enough {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// shortened is the beginning of a text.
func shortened(s string) string {
	const most = 30
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// printable replaces what could steer a terminal: the text is somebody else's.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return '·'
		}
		return r
	}, s)
}
