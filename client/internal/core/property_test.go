package core

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
)

// TestProperties plays random networks: whatever is lost, doubled, late or out of order, every message has one outcome,
// states only grow, and each side sees every number once and in order.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.Uint64().Draw(t, "jitter"))
		one := func(t *rapid.T, ok func(*user) bool) *user {
			var able []*user
			for _, u := range w.users {
				if ok(u) {
					able = append(able, u)
				}
			}
			if len(able) == 0 {
				t.Skip("nothing to do") // Before the first draw, so that another action is tried.
			}
			return able[rapid.IntRange(0, len(able)-1).Draw(t, "user")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				u := one(t, func(*user) bool { return true })
				w.uuids++
				w.send(t, u, fmt.Sprintf("%s-%d", u.uid, w.uuids))
			},
			"send again": func(t *rapid.T) {
				u := one(t, func(u *user) bool { return len(u.sends) > 0 })
				uuid := rapid.SampledFrom(slices.Sorted(maps.Keys(u.sends))).Draw(t, "uuid")
				if u.state[uuid] <= Failed { // The application may only repeat what it does not know to be stored.
					w.send(t, u, uuid)
				}
			},
			"connect":    func(t *rapid.T) { w.connect(t, one(t, func(u *user) bool { return !u.online })) },
			"disconnect": func(t *rapid.T) { w.disconnect(t, one(t, func(u *user) bool { return u.online })) },
			"up": func(t *rapid.T) {
				u := one(t, func(u *user) bool { return len(u.up) > 0 })
				w.deliverUp(u, fate(rapid.IntRange(0, 3).Draw(t, "fate")))
			},
			"up and fine": func(t *rapid.T) { w.deliverUp(one(t, func(u *user) bool { return len(u.up) > 0 }), handled) },
			"answer": func(t *rapid.T) {
				u := one(t, func(u *user) bool { return len(u.answers) > 0 })
				w.deliverDown(t, u, &u.answers, 0)
			},
			"push": func(t *rapid.T) {
				u := one(t, func(u *user) bool { return len(u.pushes) > 0 })
				w.deliverDown(t, u, &u.pushes, rapid.IntRange(0, len(u.pushes)-1).Draw(t, "which"))
			},
			"lose push": func(t *rapid.T) {
				u := one(t, func(u *user) bool { return len(u.pushes) > 0 })
				i := rapid.IntRange(0, len(u.pushes)-1).Draw(t, "which")
				u.pushes = slices.Delete(u.pushes, i, i+1)
			},
			"resend": func(t *rapid.T) {
				u := one(t, func(u *user) bool { return u.online })
				for _, c := range w.server.Unconfirmed(u.uid) {
					u.pushes = append(u.pushes, encode(c))
				}
			},
			"consume":   func(t *rapid.T) { w.consume(t, one(t, func(u *user) bool { return len(u.inHand) > 0 })) },
			"short":     func(t *rapid.T) { w.pass(t, time.Duration(rapid.IntRange(0, 500).Draw(t, "ms"))*time.Millisecond) },
			"long":      func(t *rapid.T) { w.pass(t, time.Duration(rapid.IntRange(0, 40).Draw(t, "s"))*time.Second) },
			"next tick": func(t *rapid.T) { w.skip(t) },
			"resync": func(t *rapid.T) {
				u := one(t, func(u *user) bool { return u.online })
				u.pushes = append(u.pushes, frame{t: clientv1.CommandType_RESYNC})
			},
		})
		w.heal(t)
		w.check(t)
	})
}
