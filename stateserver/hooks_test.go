package stateserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateserver/hooks"
)

// listener is somebody who is told, over HTTP and over gRPC.
type listener struct {
	statev1.UnimplementedHooksServer
	t *testing.T

	mu sync.Mutex
	// Guarded by mu.
	stored  []*statev1.StoredEvent
	offline []string
	tokens  map[string]bool
	calls   int
	// answer decides what a call gets, nil = taken. It may block until ctx ends.
	answer func(ctx context.Context, call int) error
}

func (l *listener) take(ctx context.Context, token string, note func()) error {
	l.mu.Lock()
	l.calls++
	call, answer := l.calls, l.answer
	if l.tokens == nil {
		l.tokens = map[string]bool{}
	}
	l.tokens[token] = true
	l.mu.Unlock()
	if answer != nil {
		if err := answer(ctx, call); err != nil {
			return err
		}
	}
	l.look(note)
	return nil
}

func (l *listener) look(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *listener) noteOffline(in *statev1.OfflineRequest) {
	for _, e := range in.Events {
		l.offline = append(l.offline, e.Uid+" "+e.Message.Content)
	}
}

func token(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(md.Get("authorization"), "")
}

func (l *listener) Stored(ctx context.Context, in *statev1.StoredRequest) (*statev1.StoredResponse, error) {
	return &statev1.StoredResponse{}, l.take(ctx, token(ctx), func() { l.stored = append(l.stored, in.Events...) })
}

func (l *listener) Offline(ctx context.Context, in *statev1.OfflineRequest) (*statev1.OfflineResponse, error) {
	return &statev1.OfflineResponse{}, l.take(ctx, token(ctx), func() { l.noteOffline(in) })
}

func (l *listener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var note func()
	switch hook := r.Header.Get("Sluice-Hook"); hook {
	case "stored":
		in := &statev1.StoredRequest{}
		err = errors.Join(err, protojson.Unmarshal(body, in))
		note = func() { l.stored = append(l.stored, in.Events...) }
	case "offline":
		in := &statev1.OfflineRequest{}
		err = errors.Join(err, protojson.Unmarshal(body, in))
		note = func() { l.noteOffline(in) }
	default:
		err = fmt.Errorf("hook %q", hook)
	}
	if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		l.t.Errorf("%s %s: %v", r.Method, r.Header.Get("Content-Type"), err)
	}
	if err := l.take(r.Context(), r.Header.Get("Authorization"), note); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// listen starts it and returns its target.
func listen(t *testing.T, way string) (*listener, string) {
	t.Helper()
	l := &listener{t: t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("told in %d calls: stored %q, offline %q", l.calls, l.contents(), l.absent())
		}
	})
	if way == "http" {
		s := httptest.NewServer(l)
		t.Cleanup(s.Close)
		return l, s.URL + "/hook"
	}
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	statev1.RegisterHooksServer(s, l)
	go func() { _ = s.Serve(nl) }() // ends with Stop
	t.Cleanup(s.Stop)
	return l, "grpc://" + nl.Addr().String()
}

// contents are those of the stored events, each once, in the order in which they were told first.
func (l *listener) contents() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	seen := map[string]bool{}
	for _, e := range l.stored {
		if !seen[e.MsgId] {
			seen[e.MsgId] = true
			out = append(out, e.Content)
		}
	}
	return out
}

// absent are the offline events as "uid content", sorted, each once.
func (l *listener) absent() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(l.offline)))
}

// TestHooks: what is stored is told in its order with all its fields, and who was offline.
func TestHooks(t *testing.T) {
	for _, way := range []string{"http", "grpc"} {
		t.Run(way, func(t *testing.T) {
			l, target := listen(t, way)
			b, p := startReal(t, func(c *Config, _ *Deps) {
				c.Hooks.Stored, c.Hooks.Offline, c.Hooks.Token = target, target, "secret"
				c.Resend.GroupMembersMax = 4
			})
			g, e := b.gateway("gw-1"), newEdge(t, p, "gw-1")
			e.connect("carol/phone")
			api := statev1.NewMessagingClient(b.conn)
			for group, members := range map[string][]string{"g:few": {"alice", "bob", "carol", "dora"}, "g:many": {"alice", "bob", "carol", "dora", "emil"}} {
				if _, err := api.CreateGroup(t.Context(), &statev1.CreateGroupRequest{GroupId: group, Members: members}); err != nil {
					t.Fatal(err)
				}
			}
			var want []string
			for i, to := range []string{"bob", "carol", "g:few", "g:many", "alice"} {
				g.say("alice/phone", fmt.Sprint("u", i), to, "to "+to)
				want = append(want, "to "+to)
			}
			eventually(t, "all stored events", func() bool { return slices.Equal(l.contents(), want) })
			eventually(t, "all offline events", func() bool {
				return slices.Equal(l.absent(), []string{"bob to bob", "bob to g:few", "dora to g:few"})
			})
			l.look(func() {
				m := l.stored[0]
				if m.ConvId != "u:alice:bob" || m.Seq != 1 || m.FromUid != "alice" || m.ReceiverId != "bob" || m.Uuid != "u0" || m.Type != 1 || m.ServerAtMs == 0 {
					t.Errorf("%v", m)
				}
				if len(l.tokens) != 1 || !l.tokens["Bearer secret"] {
					t.Errorf("tokens %v", l.tokens)
				}
			})
		})
	}
}

// TestHooksInTrouble: a hook that refuses, and one that hangs, hold up no message, and are told of everything once they
// are well again.
func TestHooksInTrouble(t *testing.T) {
	for _, way := range []string{"http", "grpc"} {
		t.Run(way, func(t *testing.T) {
			l, target := listen(t, way)
			const messages = 300
			well := make(chan struct{})
			l.look(func() {
				l.answer = func(ctx context.Context, call int) error {
					select {
					case <-well:
						return nil
					default:
					}
					if call%2 == 0 {
						return status.Error(codes.Internal, "broken")
					}
					select { // hangs
					case <-ctx.Done():
					case <-well:
					}
					return status.Error(codes.Aborted, "hung")
				}
			})
			b, p := startReal(t, func(c *Config, _ *Deps) {
				c.Hooks.Stored, c.Hooks.Offline, c.Hooks.Timeout = target, target, 500*time.Millisecond
			})
			g, e := b.gateway("gw-1"), newEdge(t, p, "gw-1")
			e.connect("bob/phone")
			var want, away []string
			for i := range messages {
				text := fmt.Sprintf("%03d", i)
				want = append(want, text)
				if i%10 == 0 {
					g.say("alice/phone", "c"+text, "carol", text)
					away = append(away, "carol "+text)
				} else {
					g.say("alice/phone", "b"+text, "bob", text)
				}
			}
			eventually(t, "messages at bob while the hook is in trouble", func() bool { return len(e.texts("bob/phone")) == messages-messages/10 })
			eventually(t, "some failures", func() (ok bool) {
				l.look(func() { ok = l.calls >= 4 })
				return ok
			})
			if got := l.contents(); len(got) > 0 {
				t.Fatalf("told %d in spite of it", len(got))
			}
			close(well)
			eventually(t, "all stored events", func() bool { return slices.Equal(l.contents(), want) })
			eventually(t, "all offline events", func() bool { return slices.Equal(l.absent(), away) })
		})
	}
}

// TestHooksAfterACrash: the process is killed while its hook is dead. The next one tells what was stored before, and who
// is offline.
func TestHooksAfterACrash(t *testing.T) {
	t.Setenv(childReal, "yes")
	nobody := "http://" + testenv.FreeAddr(t)
	t.Setenv(childHook, nobody)
	redis := testenv.Redis(t)
	p, closeReal, err := connectReal(redis.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeReal)
	dsn := "sqlite://" + filepath.Join(t.TempDir(), "sluice.db")
	addr, gone := child(t, dsn, redis.Addr, FailpointReply+":50")
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	g := (&bench{t: t, conn: conn}).gateway("gw-1")
	for i := 0; i < 1000 && g.trySend(g.from("alice/phone", up(fmt.Sprint(i), "bob", fmt.Sprint(i)))) == nil; i++ {
		g.await("an answer, or the end", func() bool { return len(g.got) > i || g.ended != nil })
	}
	g.await("the end of the stream", func() bool { return g.ended != nil })
	gone()

	l, target := listen(t, "http")
	b := &bench{t: t, redis: redis, cfg: testConfig(redis.Addr, dsn)}
	b.run(func(c *Config, d *Deps) {
		d.Log = quiet(t)
		p.use(c, d)
		c.Hooks.Stored, c.Hooks.Offline = target, target
	})
	defer b.stop()
	var want, away []string
	for _, m := range b.conversation("u:alice:bob") {
		want = append(want, m.Content)
		away = append(away, "bob "+m.Content)
	}
	if len(want) < 49 {
		t.Fatalf("only %d were stored", len(want))
	}
	slices.Sort(away)
	eventually(t, "all stored events", func() bool { return slices.Equal(l.contents(), want) })
	eventually(t, "all offline events", func() bool { return slices.Equal(l.absent(), away) })
	// What is new follows.
	g2 := b.gateway("gw-2")
	g2.say("alice/phone", "new", "bob", "new")
	eventually(t, "the new one", func() bool { return slices.Equal(l.contents(), append(slices.Clone(want), "new")) })
}

// TestHookTurnedOffAndOn: what is stored without the hook is not told when it is back.
func TestHookTurnedOffAndOn(t *testing.T) {
	l, target := listen(t, "http")
	redis := testenv.Redis(t)
	p, closeReal, err := connectReal(redis.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeReal)
	dsn := "sqlite://" + filepath.Join(t.TempDir(), "sluice.db")
	run := func(hook, text string, told ...string) {
		t.Helper()
		b := &bench{t: t, redis: redis, cfg: testConfig(redis.Addr, dsn)}
		b.run(func(c *Config, d *Deps) {
			d.Log = quiet(t)
			p.use(c, d)
			c.Hooks.Stored = hook
		})
		defer b.stop()
		b.gateway("gw-"+text).say("alice/phone", text, "bob", text)
		eventually(t, fmt.Sprintf("told %q", told), func() bool { return slices.Equal(l.contents(), told) })
		eventually(t, "the mark", func() bool {
			rows := b.conversation("u:alice:bob")
			return b.node.Mark() >= rows[len(rows)-1].MsgID
		})
	}
	run(target, "one", "one")
	run("", "two", "one")
	run(target, "three", "one", "three")
}

// TestHookOfflineLater: who was connected when a message was pushed and never confirmed it is told of when he turns out to
// be gone.
func TestHookOfflineLater(t *testing.T) {
	l, target := listen(t, "http")
	b, p := startReal(t, func(c *Config, _ *Deps) { c.Hooks.Offline = target })
	g, e := b.gateway("gw-1"), newEdge(t, p, "gw-1")
	e.connect("bob/phone", "carol/phone")
	g.say("alice/phone", "1", "bob", "one")
	g.say("alice/phone", "2", "carol", "two")
	eventually(t, "the messages", func() bool { return len(e.texts("bob/phone")) == 1 && len(e.texts("carol/phone")) == 1 })
	g.send(g.from("carol/phone", command(clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: "u:alice:carol", Seq: 1})))
	eventually(t, "carol's confirmation", func() bool { return p.unacked(t) == 1 })
	e.disconnect("bob/phone")
	e.disconnect("carol/phone")
	eventually(t, "bob is told of", func() bool { return slices.Equal(l.absent(), []string{"bob one"}) })
}

func TestHookTargets(t *testing.T) {
	for target, ok := range map[string]bool{
		"http://host/x": true, "https://host": true, "grpc://h:1": true, "grpcs://h:1": true, "dns:///h:1": true, "h:1": true,
		"": false, "http://": false, "grpc://": false, "a b": false,
	} {
		if err := hooks.ValidTarget(target); (err == nil) != ok {
			t.Errorf("%q: %v", target, err)
		}
	}
	cfg := Default()
	cfg.Hooks.Stored = "http://"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "hooks.stored") {
		t.Errorf("%v", err)
	}
}
