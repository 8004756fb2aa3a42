package delivery

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strconv"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/prelude.lua
var preludeLua string

//go:embed scripts/enrol.lua
var enrolLua string

//go:embed scripts/ack.lua
var ackLua string

//go:embed scripts/take.lua
var takeLua string

//go:embed scripts/resolve.lua
var resolveLua string

//go:embed scripts/count.lua
var countLua string

//go:embed scripts/touch.lua
var touchLua string

//go:embed scripts/due.lua
var dueLua string

//go:embed scripts/raise.lua
var raiseLua string

//go:embed scripts/lease.lua
var leaseLua string

// script is one Lua script and the name Redis caches it under.
type script struct{ text, sha string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

// scripts of the resend table. Those of the first group work on one user, those of the second on one shard or on all.
type scripts struct {
	enrol, ack, take, resolve, count *script
	touch, due, raise, lease         *script
}

func newScripts() scripts {
	return scripts{
		enrol: newScript(preludeLua + enrolLua), ack: newScript(preludeLua + ackLua), take: newScript(preludeLua + takeLua),
		resolve: newScript(preludeLua + resolveLua), count: newScript(preludeLua + countLua),
		touch: newScript(touchLua), due: newScript(dueLua), raise: newScript(raiseLua), lease: newScript(leaseLua),
	}
}

// call is one script with its keys, which share a slot.
type call struct {
	script *script
	keys   []string
	args   []any
}

// run executes calls in one round trip; the results are in their order and each has its own error. Scripts that the server
// does not know, because it was restarted, are sent again with their text.
func run(ctx context.Context, rdb redis.UniversalClient, calls []call) []*redis.Cmd {
	out := make([]*redis.Cmd, len(calls))
	if len(calls) == 0 {
		return out
	}
	// The pipeline's own error is that of its first failed command: each is looked at by itself.
	_, _ = rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, c := range calls {
			out[i] = p.EvalSha(ctx, c.script.sha, c.keys, c.args...)
		}
		return nil
	})
	var missing []int
	for i, cmd := range out {
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			missing = append(missing, i)
		}
	}
	if len(missing) == 0 {
		return out
	}
	_, _ = rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, i := range missing {
			out[i] = p.Eval(ctx, calls[i].script.text, calls[i].keys, calls[i].args...)
		}
		return nil
	})
	return out
}

// number reads an integer that a script returned as integer or as text.
func number(v any) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case string:
		i, _ := strconv.ParseInt(n, 10, 64)
		return i
	}
	return 0
}

func text(v any) string {
	s, _ := v.(string)
	return s
}
