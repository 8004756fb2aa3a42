package gateway

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/stateclient"
)

// TestBucketNeverGivesMore: however charges and pauses come, no more than burst + rate x time is let through, plus the
// one charge that may go into debt; and who is let wait for as long as he is told is let through.
func TestBucketNeverGivesMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond, burst := rapid.IntRange(1, 1000).Draw(t, "rate"), rapid.IntRange(1, 1000).Draw(t, "burst")
		r := newRate(perSecond, burst)
		var b bucket
		now, used := time.Hour, 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if w := b.wait(now, r); w > 0 {
				if after := b.wait(now+w, r); after != 0 {
					t.Fatalf("told to wait %v, and then %v more", w, after)
				}
				now += w
			}
			last := rapid.IntRange(1, 50).Draw(t, "tokens")
			b.charge(now, r, last)
			used += last
			if most := float64(burst) + float64(now-time.Hour)/float64(r.unit) + float64(last); float64(used) > most {
				t.Fatalf("%d tokens in %v, at most %v are due", used, now-time.Hour, most)
			}
			now += time.Duration(rapid.Int64Range(0, int64(time.Second/10)).Draw(t, "pause"))
		}
	})
}

// TestTimeDoesNotGoBack: next is never in the past of what expired would say already, so no timer spins.
func TestTimeDoesNotGoBack(t *testing.T) {
	cfg := talkConfig()
	r := newRules(&cfg)
	for st := range states {
		for _, held := range []hold{0, holdWindow, holdRate, holdLogin} {
			s := session{state: st, held: held, active: time.Hour, until: time.Hour + time.Second, frameAt: time.Hour}
			now := time.Hour + time.Millisecond
			if s.expired(now, &r) != reason.None {
				continue
			}
			if at := s.next(now, &r); at != 0 && at < now {
				t.Errorf("%s, held %b: next is %v, now is %v", stateNames[st], held, at, now)
			}
		}
	}
}

// TestEveryOutcomeHasAnAnswer walks the lower half of the truth table for each kind of command.
func TestEveryOutcomeHasAnAnswer(t *testing.T) {
	for _, c := range []struct {
		command clientv1.CommandType
		outcome stateclient.Outcome
		verb    verb
		reason  reason.Reason
	}{
		{clientv1.CommandType_MESSAGEUP, stateclient.Answered, doWrite, reason.None},
		{clientv1.CommandType_MESSAGEUP, stateclient.Refused, doFail, reason.BackendRefused},
		{clientv1.CommandType_MESSAGEUP, stateclient.Exhausted, doRetry, reason.BackendError},
		{clientv1.CommandType_MESSAGEUP, stateclient.Failed, doRetry, reason.BackendError},
		{clientv1.CommandType_MESSAGEUP, stateclient.FailedUnknown, doRetry, reason.BackendError},
		{clientv1.CommandType_MESSAGEUP, stateclient.TimedOut, doRetry, reason.Timeout},
		{clientv1.CommandType_MESSAGEUP, stateclient.NoBackend, doRetry, reason.NoBackend},
		{clientv1.CommandType_MESSAGEUP, stateclient.Broken, doRetry, reason.BackendError},
		{clientv1.CommandType_SYNC, stateclient.Refused, doError, reason.BackendRefused},
		{clientv1.CommandType_READ, stateclient.TimedOut, doRetry, reason.Timeout},
		{clientv1.CommandType(1000), stateclient.FailedUnknown, doRetry, reason.BackendError},
		{clientv1.CommandType_DELIVERED, stateclient.Refused, doDrop, reason.BackendRefused},
		{clientv1.CommandType_DELIVERED, stateclient.TimedOut, doDrop, reason.Timeout},
		{clientv1.CommandType_LOGOUT, stateclient.Broken, doDrop, reason.BackendError},
	} {
		var s session
		st := s.settle(settlement{command: c.command, outcome: c.outcome})
		if st.verb != c.verb || st.reason != c.reason || (st.verb == doRetry) != (st.after > 0) || st.after > retryMax {
			t.Errorf("%v, outcome %d: %+v", c.command, c.outcome, st)
		}
	}
}

// TestUnknownIsCountedByUUID: others in between do not matter, but only so many uuids are remembered.
func TestUnknownIsCountedByUUID(t *testing.T) {
	var s session
	ask := func(hash uint64) verb {
		return s.settle(settlement{command: clientv1.CommandType_MESSAGEUP, outcome: stateclient.FailedUnknown, uuidHash: hash}).verb
	}
	for round := range unknownMax - 1 {
		for hash := range uint64(unknownKept) {
			if got := ask(hash); got != doRetry {
				t.Fatalf("round %d, uuid %d: %d", round, hash, got)
			}
		}
	}
	if got := ask(5); got != doFail {
		t.Errorf("the third Unknown of a uuid: %d", got)
	}
	for hash := range uint64(10 * unknownKept) {
		ask(1000 + hash)
	}
	if n := len(s.trouble.unknown); n != unknownKept {
		t.Errorf("%d uuids are remembered", n)
	}
}

// TestOnlyLoginBeforeLogin: whatever else comes first closes.
func TestOnlyLoginBeforeLogin(t *testing.T) {
	cfg := talkConfig()
	r := newRules(&cfg)
	for command := clientv1.CommandType(0); command < 30; command++ {
		s := session{state: awaitingLogin}
		st := s.command(time.Hour, &r, &codec.Header{Type: command}, reason.None, 10)
		if command == clientv1.CommandType_LOGIN {
			if st.verb != doLogin || s.state != loggingIn {
				t.Errorf("LOGIN: %+v", st)
			}
		} else if st.verb != doClose || st.reason != reason.NotLoggedIn {
			t.Errorf("%v before login: %+v", command, st)
		}
	}
}
