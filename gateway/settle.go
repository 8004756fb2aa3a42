package gateway

import (
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/stateclient"
)

// relayed reports whether commands of type t go to the logic tier.
func relayed(t clientv1.CommandType) bool {
	switch t {
	case clientv1.CommandType_MESSAGEUP, clientv1.CommandType_DELIVERED, clientv1.CommandType_READ,
		clientv1.CommandType_SYNC, clientv1.CommandType_PULL:
		return true
	}
	return t >= customType
}

// customType is the first of the command types that are the user's own.
const customType clientv1.CommandType = 1000

// settlement is how the logic tier ended one uplink, as far as a session has to know.
type settlement struct {
	command    clientv1.CommandType
	outcome    stateclient.Outcome
	retryAfter time.Duration
	// uuidHash tells uuids apart; only looked at for FailedUnknown.
	uuidHash uint64
}

// settle is the lower half of the truth table (guarantees, "What the gateway answers"): what the client is told when the
// logic tier's answer is there, or is not going to come.
func (s *session) settle(e settlement) step {
	var why reason.Reason
	switch e.outcome {
	case stateclient.Answered:
		return step{verb: doWrite}
	case stateclient.Refused:
		return s.refusal(e, reason.BackendRefused)
	case stateclient.Exhausted:
		after := e.retryAfter
		if after <= 0 {
			after = retryPace
		}
		return s.later(e, reason.BackendError, after)
	case stateclient.FailedUnknown:
		if e.command == clientv1.CommandType_MESSAGEUP && s.countUnknown(e.uuidHash) >= unknownMax {
			return s.refusal(e, reason.Rejected)
		}
		why = reason.BackendError
	case stateclient.TimedOut:
		why = reason.Timeout
	case stateclient.NoBackend:
		why = reason.NoBackend
	default: // Failed, Broken
		why = reason.BackendError
	}
	return s.later(e, why, retryPace)
}

// refusal answers "no effect, and no use in trying again".
func (s *session) refusal(e settlement, why reason.Reason) step {
	switch e.command {
	case clientv1.CommandType_MESSAGEUP:
		return step{verb: doFail, reason: why}
	case clientv1.CommandType_DELIVERED, clientv1.CommandType_LOGOUT:
		return step{verb: doDrop, reason: why}
	}
	return step{verb: doError, reason: why}
}

// later answers "try again", once the client may do so: DELIVERED is cumulative, so the next one covers it.
func (s *session) later(e settlement, why reason.Reason, after time.Duration) step {
	switch e.command {
	case clientv1.CommandType_DELIVERED, clientv1.CommandType_LOGOUT:
		return step{verb: doDrop, reason: why}
	}
	return step{verb: doRetry, reason: why, after: after}
}

func (s *session) countUnknown(hash uint64) int {
	t := s.troubled()
	for i := range t.unknown {
		if t.unknown[i].hash == hash {
			t.unknown[i].count++
			return int(t.unknown[i].count)
		}
	}
	if len(t.unknown) == unknownKept {
		t.unknown = append(t.unknown[:0], t.unknown[1:]...)
	}
	t.unknown = append(t.unknown, unknownCount{hash: hash, count: 1})
	return 1
}

// refused says that the queue to the logic tier would not take an uplink.
func (s *session) refused() { s.blocked = true }

// parkedTooLong says that the queue has been full for longer than park_max.
func (s *session) parkedTooLong() { s.refusing = s.blocked }

// room says that the queue has room again.
func (s *session) room() { s.blocked, s.refusing = false, false }

// leave says that the connection is to be closed for why once what is in flight is answered. It reports false when the
// session was already ending: the first reason wins.
func (s *session) leave(why reason.Reason) bool {
	if s.state >= leaving {
		return false
	}
	s.state, s.ending = leaving, why
	return true
}

// close says that the connection is being closed for why. It reports false when that was so already. The reason of a
// session that was leaving stays.
func (s *session) close(why reason.Reason) bool {
	if s.state == closing {
		return false
	}
	if s.ending == reason.None {
		s.ending = why
	}
	s.state = closing
	return true
}

// drained reports whether a leaving session has nothing left to wait for.
func (s *session) drained() bool { return s.state == leaving && s.inflight == 0 }
