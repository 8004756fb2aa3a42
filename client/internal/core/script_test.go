package core

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
)

var update = flag.Bool("update", false, "write the effects that were seen into testdata")

// noJitter makes every random part zero, so that the scripts can name exact times.
type noJitter struct{}

func (noJitter) Uint64() uint64 { return 0 }

// TestScripts plays the conversations in testdata. A line is an input; the lines after it that begin with "> " are all
// its effects. "+5s" lets time pass, and its effects carry the time since the script's start. "config" sets a bound.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("scripts: %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		comment, scripts := split(string(text))
		for i, s := range scripts {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar")+"/"+s.name, func(t *testing.T) {
				got := play(t, s.text)
				scripts[i].text = got
				if got != s.text && !*update {
					t.Errorf("effects differ; with these it would pass:\n%s", got)
				}
			})
		}
		if *update {
			if err := os.WriteFile(file, []byte(join(comment, scripts)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

type script struct{ name, text string }

// split takes the txtar format apart: a comment, then texts under "-- name --" lines.
func split(archive string) (comment string, scripts []script) {
	for line := range strings.Lines(archive) {
		name, isHeader := strings.CutPrefix(strings.TrimSpace(line), "-- ")
		name, ends := strings.CutSuffix(name, " --")
		switch {
		case isHeader && ends:
			scripts = append(scripts, script{name: name})
		case len(scripts) == 0:
			comment += line
		default:
			scripts[len(scripts)-1].text += line
		}
	}
	return comment, scripts
}

func join(comment string, scripts []script) string {
	for _, s := range scripts {
		comment += "-- " + s.name + " --\n" + s.text
	}
	return comment
}

// player feeds one machine.
type player struct {
	cfg   Config
	m     *Machine
	start time.Time
	now   time.Time
	marks Marks
	out   strings.Builder
}

// play runs the inputs of a script and returns it with the effects that were seen.
func play(t *testing.T, script string) string {
	start := time.Unix(1000, 0)
	p := &player{cfg: Default(), start: start, now: start}
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "> ") {
			continue
		}
		fmt.Fprintln(&p.out, line)
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if err := p.input(fields); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	return p.out.String()
}

func (p *player) input(f []string) error {
	if f[0] == "config" {
		return p.configure(f[1], f[2])
	}
	if p.m == nil {
		p.m = New(p.cfg, p.marks, rand.New(noJitter{}))
	}
	if after, ok := strings.CutPrefix(f[0], "+"); ok {
		d, err := time.ParseDuration(after)
		if err != nil {
			return err
		}
		p.pass(d)
		return nil
	}
	err := p.step(f)
	p.show(false)
	return err
}

func (p *player) configure(name, value string) error {
	n, err := strconv.Atoi(value)
	switch name {
	case "queue":
		p.cfg.QueueMax = n
	case "drafts":
		p.cfg.DraftsMax = n
	case "tracked":
		p.cfg.TrackedMax = n
	case "losses":
		p.cfg.LossesMax = n
	case "early":
		p.cfg.EarlyMax = n
	case "conversations":
		p.cfg.ConversationsMax = n
	case "window":
		p.cfg.Window = n
	default:
		return fmt.Errorf("no such bound")
	}
	return err
}

// pass lets time pass in steps from deadline to deadline.
func (p *player) pass(d time.Duration) {
	end := p.now.Add(d)
	for range 10_000 {
		at, ok := p.m.Deadline()
		if !ok || at.After(end) {
			break
		}
		if at.After(p.now) {
			p.now = at
		}
		p.m.Tick(p.now)
		p.show(true)
	}
	p.now = end
}

func (p *player) step(f []string) error {
	args := map[string]string{}
	for _, a := range f[1:] {
		k, v, _ := strings.Cut(a, "=")
		args[k] = v
	}
	num := func(k string) int64 { n, _ := strconv.ParseInt(args[k], 10, 64); return n }
	switch f[0] {
	case "marks":
		marks := Marks{UID: args["uid"], SinceMs: num("since"), Conversations: map[string]int64{args["conv"]: num("seq")}}
		p.m = New(p.cfg, marks, rand.New(noJitter{}))
	case "show-marks":
		marks := p.m.Marks()
		fmt.Fprintf(&p.out, "> uid=%s since=%d %v\n", marks.UID, marks.SinceMs, marks.Conversations)
	case "connect":
		p.m.Connected(p.now, "alice", int(num("frame")))
	case "flush":
		p.m.Flush(p.now)
	case "disconnect":
		p.m.Disconnected(p.now)
	case "send":
		known, err := p.m.Enqueue(p.now, &clientv1.MessageUp{Uuid: f[1], ReceiverId: "bob", Content: args["text"]})
		if known || err != nil {
			fmt.Fprintf(&p.out, "> known=%v err=%v\n", known, err)
		}
	case "restore":
		p.m.Restore(&clientv1.MessageUp{Uuid: f[1], ReceiverId: "bob"}, args["failed"])
	case "discard":
		fmt.Fprintf(&p.out, "> %v\n", p.m.Discard(f[1]))
	case "consumed":
		p.m.Consumed(p.now, f[1], num("seq"))
	case "read":
		p.m.MarkRead(p.now, f[1], num("seq"))
	case "history":
		if _, err := p.m.History(p.now, f[1], num("after"), int(num("limit"))); err != nil {
			fmt.Fprintf(&p.out, "> err=%v\n", err)
		}
	default:
		return p.command(f, args, num)
	}
	return nil
}

// command is a line that the server says.
func (p *player) command(f []string, args map[string]string, num func(string) int64) error {
	var (
		t   clientv1.CommandType
		msg interface{ MarshalVT() ([]byte, error) }
	)
	switch f[0] {
	case "ok", "retry", "fail":
		status := map[string]clientv1.MessageAckStatus{"ok": 0, "retry": 1, "fail": 2}[f[0]]
		t, msg = clientv1.CommandType_MESSAGEACK, &clientv1.MessageAck{
			Uuid: f[1], Status: status, ConvId: args["conv"], Seq: num("seq"), Reason: args["reason"], RetryAfterMs: uint32(num("after")),
		}
	case "down":
		t, msg = clientv1.CommandType_MESSAGEDOWN, down(f[1], num("seq"), args["from"], args["uuid"])
	case "delivered":
		t, msg = clientv1.CommandType_DELIVERED_NOTICE, &clientv1.DeliveredNotice{ConvId: f[1], Uid: args["uid"], Seq: num("seq")}
	case "read-by":
		t, msg = clientv1.CommandType_READ_NOTICE, &clientv1.ReadNotice{ConvId: f[1], Uid: args["uid"], Seq: num("seq")}
	case "sync-reply":
		r := &clientv1.SyncReply{ServerTimeMs: num("time"), Cursor: args["cursor"], HasMore: args["cursor"] != ""}
		if args["conv"] != "" {
			r.Conversations = append(r.Conversations, &clientv1.ConversationState{
				ConvId: args["conv"], MaxSeq: num("max"), FloorSeq: num("floor"), ReadSeq: num("read"),
				PeerDelivered: num("delivered"), PeerRead: num("peer_read"), Unread: num("unread"),
			})
		}
		t, msg = clientv1.CommandType_SYNC_REPLY, r
	case "pull-reply":
		r := &clientv1.PullReply{ConvId: f[1], FloorSeq: num("floor"), HasMore: args["more"] != ""}
		for s := range strings.SplitSeq(args["seqs"], ",") {
			if n, err := strconv.ParseInt(s, 10, 64); err == nil {
				r.Messages = append(r.Messages, down(f[1], n, args["from"], args["uuid"]))
			}
		}
		t, msg = clientv1.CommandType_PULL_REPLY, r
	case "resync":
		t, msg = clientv1.CommandType_RESYNC, &clientv1.Resync{}
	case "error":
		t, msg = clientv1.CommandType_ERROR, &clientv1.Error{
			Command: clientv1.CommandType(clientv1.CommandType_value[f[1]]), ConvId: args["conv"], Uuid: args["uuid"],
			Reason: args["reason"], RetryAfterMs: uint32(num("after")),
		}
	default:
		return fmt.Errorf("no such input")
	}
	data, err := msg.MarshalVT()
	if err != nil {
		return err
	}
	return p.m.Command(p.now, t, data)
}

func down(conv string, seq int64, from, uuid string) *clientv1.MessageDown {
	return &clientv1.MessageDown{ConvId: conv, Seq: seq, FromUid: from, Uuid: uuid, MsgId: fmt.Sprint(100 + seq)}
}

// show writes the effects; those of passing time with the time.
func (p *player) show(timed bool) {
	for _, e := range p.m.Take() {
		p.out.WriteString("> ")
		if timed {
			fmt.Fprintf(&p.out, "%v ", p.now.Sub(p.start))
		}
		fmt.Fprintln(&p.out, describe(e))
	}
}

func describe(e Effect) string {
	switch e := e.(type) {
	case Write:
		return fmt.Sprintf("write %v%s", e.Type, describeMessage(e.Message))
	case Changed:
		return "state " + describeChanged(e)
	case Settled:
		return "settled " + describeChanged(e.Changed)
	case Forget:
		return "forget " + e.UUID
	case KeepDraft:
		return fmt.Sprintf("keep %s reason=%s", e.Message.Uuid, e.Reason)
	case Release:
		return fmt.Sprintf("release %s seq=%d from=%s", e.Message.ConvId, e.Message.Seq, e.Message.FromUid)
	case Receipt:
		return fmt.Sprintf("receipt %s uid=%s seq=%d %v", e.ConvID, e.UID, e.Seq, e.State)
	case Standing:
		return fmt.Sprintf("standing %s max=%d read=%d unread=%d", e.ConvID, e.MaxSeq, e.ReadSeq, e.Unread)
	case Pulled:
		return fmt.Sprintf("pulled n=%d floor=%d more=%v err=%v", len(e.Messages), e.FloorSeq, e.HasMore, e.Err)
	case Alarm:
		return fmt.Sprintf("alarm %s conv=%s %d..%d", e.Kind, e.ConvID, e.From, e.To)
	case Probe:
		return "probe"
	case Synced:
		return "synced"
	case MarksChanged:
		return "marks"
	default:
		return fmt.Sprintf("%T", e)
	}
}

func describeChanged(c Changed) string {
	s := fmt.Sprintf("%s %v", c.Message.Uuid, c.State)
	if c.Reason != "" {
		s += " reason=" + c.Reason
	}
	if c.Seq > 0 {
		s += fmt.Sprintf(" conv=%s seq=%d", c.ConvID, c.Seq)
	}
	return s
}

func describeMessage(m Message) string {
	switch m := m.(type) {
	case *clientv1.MessageUp:
		return " " + m.Uuid
	case *clientv1.Sync:
		return fmt.Sprintf(" since=%d cursor=%q", m.SinceMs, m.Cursor)
	case *clientv1.Pull:
		return fmt.Sprintf(" %s after=%d limit=%d", m.ConvId, m.AfterSeq, m.Limit)
	case *clientv1.Delivered:
		return fmt.Sprintf(" %s seq=%d", m.ConvId, m.Seq)
	case *clientv1.Read:
		return fmt.Sprintf(" %s seq=%d", m.ConvId, m.Seq)
	default:
		return ""
	}
}
