package gateway

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/sluice-im/sluice/codec"
)

// TestConservation plays random conversations of three clients and a logic tier that answers in every way, late, in a
// full queue, or never. After every step received = ok + retry + fail + none + lost + in flight; at the end everybody who
// stayed has exactly one answer to each of his messages.
func TestConservation(t *testing.T) {
	words := []string{"open", "up", "up", "up", "up", "bad", "delivered", "sync", "heartbeat", "answer", "answer", "answer", "answer",
		"fin", "reset", "kick", "logout", "full", "room", "wait", "wait"}
	outcomes := []string{"ok", "ok", "ok", "retry", "fail", "empty", "garbage", "refused", "exhausted", "failed", "unknown", "timeout",
		"nobackend", "broken"}
	rapid.Check(t, func(rt *rapid.T) {
		var script []string
		if rapid.Bool().Draw(rt, "small window") {
			script = append(script, "set inflight.frames 2")
		}
		if rapid.Bool().Draw(rt, "reject") {
			script = append(script, "set uplink.mode reject")
		}
		script = append(script, "set uplink.burst 8", "set uplink.messages 8")
		for i := range rapid.IntRange(5, 60).Draw(rt, "steps") {
			who := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "who")
			word := rapid.SampledFrom(words).Draw(rt, "word")
			switch word {
			case "up":
				word = fmt.Sprintf("up u%d bob hello", i)
			case "bad":
				word = fmt.Sprintf("up u%d b:b hello", i)
			case "delivered":
				word = "delivered u:a:b"
			case "answer":
				word = "answer " + rapid.SampledFrom(outcomes).Draw(rt, "outcome")
			case "full":
				word = fmt.Sprint("room ", rapid.IntRange(0, 2).Draw(rt, "places"))
			case "room":
				word = "room -1"
			case "wait":
				word = "wait " + rapid.SampledFrom([]string{"10ms", "60ms", "300ms", "1100ms"}).Draw(rt, "pause")
			}
			script = append(script, who+": "+word)
		}
		var fault error
		synctest.Test(t, func(t *testing.T) { fault = playAtRandom(t, script) })
		if fault != nil {
			rt.Fatalf("%v\n%s", fault, strings.Join(script, "\n"))
		}
	})
}

// playAtRandom plays a script whose lines may make no sense where they stand: what nobody can do is left out.
func playAtRandom(t *testing.T, script []string) error {
	k := &talk{t: t, cfg: talkConfig(), clients: make(map[string]*talker)}
	for len(script) > 0 && strings.HasPrefix(script[0], "set ") {
		words := strings.Fields(script[0])
		k.set(words[1], words[2])
		script = script[1:]
	}
	k.log = &logged{reasons: make(map[uint64]string)}
	k.g, k.engine, k.relay, k.table, k.stop = core(t, k.cfg, k.log)
	sent := make(map[string][]string)
	for n, text := range script {
		words := strings.Fields(text)
		who, word, args := strings.TrimSuffix(words[0], ":"), words[1], words[2:]
		c := k.clients[who]
		over := true
		if c != nil {
			over, _ = c.c.over()
		}
		switch {
		case word == "open":
			if over {
				sent[who] = nil
				_ = k.say(who, "open", []string{"tcp"})
				_ = k.say(who, "login", []string{who, "phone"})
			}
		case word == "kick":
			if c != nil {
				k.g.hangUp(c.c.id, reasonSlow)
			}
		case word == "answer":
			k.relay.mu.Lock()
			none := len(k.relay.held) == 0
			uuid := "u"
			if !none {
				uuid = uuidOf(k.relay.held[0].Payload)
			}
			k.relay.mu.Unlock()
			if !none {
				_ = k.say(who, word, append(args, uuid))
			}
		case word == "room" || word == "wait":
			_ = k.say(who, word, args)
		case !over:
			if word == "up" {
				sent[who] = append(sent[who], args[0])
			}
			_ = k.say(who, word, args)
		}
		synctest.Wait()
		k.balanced(n)
	}
	_ = k.say("", "room", []string{"-1"})
	for range 200 {
		_ = k.say("", "wait", []string{"100ms"})
		synctest.Wait()
		for k.relay.answer(0, nil, 0) {
			synctest.Wait()
		}
	}
	err := k.answeredOnce(sent)
	k.stop()
	k.settled()
	return err
}

// answeredOnce asserts that nobody got two answers to one message, and that who is still there has one to each.
func (k *talk) answeredOnce(sent map[string][]string) error {
	for who, uuids := range sent {
		c := k.clients[who]
		c.read()
		got := make(map[string]int)
		for _, item := range c.items {
			if words := strings.Fields(item); words[0] == "MESSAGEACK" {
				got[words[1]]++
			}
		}
		over, _ := c.c.over()
		for _, uuid := range uuids {
			if got[uuid] > 1 {
				return fmt.Errorf("%s has %d answers to %s: %v", who, got[uuid], uuid, c.items)
			}
		}
		if over {
			continue
		}
		p := k.g.peers.locked(c.c.id)
		frames, size, owed := p.session.inflight, p.session.inflightBytes, p.session.pending
		p.mu.Unlock()
		if n := k.g.books().inflight; n != 0 || frames != 0 || size != 0 || owed != 0 {
			return fmt.Errorf("%s is there, and %d are in flight, %d frames of %d bytes, %d owed", who, n, frames, size, owed)
		}
	}
	return nil
}

func uuidOf(command []byte) string {
	h, _ := codec.Scan(command)
	return string(h.UUID)
}
