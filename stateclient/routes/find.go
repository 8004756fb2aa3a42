package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/api/ident"
)

// errReplica is an answer that a replica gave: it may be old, and "offline" must never come from it.
var errReplica = errors.New("the server is a replica")

// UnknownError names the users whose routes could not be read. Of the others Find's map holds what it found.
type UnknownError struct {
	UIDs []string
	// Err is the first cause.
	Err error
}

// Error names how many are unknown, and why.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("routes: find: %d users unknown: %v", len(e.UIDs), e.Err)
}

// Unwrap returns the first cause.
func (e *UnknownError) Unwrap() error { return e.Err }

// Find reads the routes of many users in one round trip for each 512; a second one asks for gateways not met before. It
// returns only routes whose gateway's lease stands. A user without an entry in the map is offline, unless the error (an
// *UnknownError) names him. Failure is never "offline".
func (t *Table) Find(ctx context.Context, uids []string) (map[string][]Route, error) {
	found := make(map[string][]Route, len(uids))
	unknown := &UnknownError{}
	for start := 0; start < len(uids); start += batchMax {
		t.findBatch(ctx, uids[start:min(start+batchMax, len(uids))], found, unknown)
	}
	if len(unknown.UIDs) > 0 {
		return found, unknown
	}
	return found, nil
}

func (t *Table) findBatch(ctx context.Context, uids []string, found map[string][]Route, unknown *UnknownError) {
	ctx, cancel := context.WithTimeout(ctx, t.o.LookupTimeout)
	defer cancel()
	read, failed := t.read(ctx, uids)
	incarnations := make(map[string]liveness)
	for _, routes := range read {
		for i := range routes {
			incarnations[routes[i].Incarnation] = liveness{}
		}
	}
	t.o.Live.look(ctx, incarnations)

	var dead []Route
	for uid, routes := range read {
		alive := routes[:0]
		for _, r := range routes {
			switch l := incarnations[r.Incarnation]; {
			case l.err != nil:
				failed[uid] = l.err
			case l.alive:
				alive = append(alive, r)
			default:
				dead = append(dead, r)
			}
		}
		if len(alive) > 0 && failed[uid] == nil {
			found[uid] = alive
		}
	}
	for uid, err := range failed {
		unknown.UIDs = append(unknown.UIDs, uid)
		unknown.Err = cmp.Or(unknown.Err, err)
	}
	if len(dead) > 0 {
		// This only tidies up: a route that stays is found dead again by the next lookup.
		_ = t.removeDead(ctx, dead)
	}
}

// read returns the routes of those that have some, and an error for each that could not be read.
func (t *Table) read(ctx context.Context, uids []string) (map[string][]Route, map[string]error) {
	cmds := make(map[string]*redis.MapStringStringCmd, len(uids))
	routes, failed := make(map[string][]Route, len(uids)), make(map[string]error)
	pipe := t.rdb.Pipeline()
	role := t.role(ctx, pipe)
	for _, uid := range uids {
		// A uid that is not valid has no key, and no route: nobody could claim one.
		if cmds[uid] == nil && ident.ValidUID(uid) {
			cmds[uid] = pipe.HGetAll(ctx, routeKey(uid))
		}
	}
	if len(cmds) == 0 {
		return routes, failed
	}
	_, broken := pipe.Exec(ctx)
	replica := role()
	for uid, cmd := range cmds {
		err := cmp.Or(cmd.Err(), replica)
		if err == nil && cmd.Val() == nil {
			err = cmp.Or(broken, errReply) // never answered: an empty hash is an empty map
		}
		if err != nil {
			failed[uid] = err
			continue
		}
		for device, value := range cmd.Val() {
			// A value that this version cannot read belongs to no gateway that it could reach.
			if r, err := parseValue(uid, device, value); err == nil {
				routes[uid] = append(routes[uid], r)
			}
		}
	}
	return routes, failed
}

// roleQuestion adds to a pipeline what tells in which role the server answers, and returns what to ask once it has run:
// errReplica when it is a replica.
type roleQuestion func(context.Context, redis.Pipeliner) func() error

// roleOf chooses the question. A Cluster's replicas refuse reads by themselves; behind a plain or Sentinel address a
// demoted master goes on answering.
func roleOf(rdb redis.UniversalClient) roleQuestion {
	if _, ok := rdb.(*redis.Client); ok {
		return askRole
	}
	return trustRole
}

// askRole puts ROLE first, so that what is answered after it was answered in that role. A server that does not know the
// command, or forbids it, has no say.
func askRole(ctx context.Context, pipe redis.Pipeliner) func() error {
	cmd := redis.NewSliceCmd(ctx, "role")
	_ = pipe.Process(ctx, cmd) // queues, cannot fail
	return func() error {
		if role := cmd.Val(); len(role) > 0 && role[0] != "master" {
			return errReplica
		}
		return nil
	}
}

func trustRole(context.Context, redis.Pipeliner) func() error { return func() error { return nil } }
