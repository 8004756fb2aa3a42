package routes

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/head.lua
	headLua string
	//go:embed lua/place.lua
	placeLua string
	//go:embed lua/drop.lua
	dropLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/list.lua
	listLua string
	//go:embed lua/living.lua
	livingLua string

	placeScript  = newScript(headLua + placeLua)
	dropScript   = newScript(headLua + dropLua)
	renewScript  = newScript(renewLua)
	listScript   = newScript(listLua)
	livingScript = newScript(livingLua)
)

// script is a Lua source with the SHA-1 by which Redis knows it.
type script struct{ source, sha string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source: source, sha: hex.EncodeToString(sum[:])}
}

// call is one run of a script. All keys of a script are this one key, so that it has one slot of a Cluster.
type call struct {
	script *script
	key    string
	args   []any
}

func (c *call) command(ctx context.Context, name, script string) *redis.Cmd {
	args := make([]any, 0, 4+len(c.args))
	args = append(args, name, script, 1, c.key)
	return redis.NewCmd(ctx, append(args, c.args...)...)
}

// once is a command that the client must not send again by itself: a claim that ran twice has lost the list of those it
// displaced with its first answer.
type once struct{ *redis.Cmd }

// NoRetry is what the client asks.
func (once) NoRetry() bool { return true }

// run sends all calls in one round trip by their SHA-1. Those whose script the server does not know (restarted, flushed,
// a new master) follow in a second one with their source. Every command returned holds its own reply or error.
func run(ctx context.Context, rdb redis.UniversalClient, calls []call) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(calls))
	pipe := rdb.Pipeline()
	for i := range calls {
		cmds[i] = calls[i].command(ctx, "evalsha", calls[i].script.sha)
		_ = pipe.Process(ctx, once{cmds[i]}) // queues, cannot fail
	}
	_, err := pipe.Exec(ctx)
	if err == nil {
		return cmds
	}
	pipe = rdb.Pipeline()
	for i, cmd := range cmds {
		switch {
		case redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT"):
			cmds[i] = calls[i].command(ctx, "eval", calls[i].script.source)
			_ = pipe.Process(ctx, once{cmds[i]})
		case cmd.Err() == nil && cmd.Val() == nil:
			// The pipeline failed before this command had a reply.
			cmd.SetErr(err)
		}
	}
	if pipe.Len() > 0 {
		_, _ = pipe.Exec(ctx) // each command holds its own error
	}
	return cmds
}
