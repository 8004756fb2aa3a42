package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/client"
	"github.com/sluice-im/sluice/client/clienttest"
	"github.com/sluice-im/sluice/cmd/internal/program"
)

// chatOf parses a command line as kong does it.
func chatOf(t *testing.T, g *clienttest.Gateway, uid string, args ...string) *chatCmd {
	c := &chatCmd{}
	parser, err := kong.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"--url", g.URL, "--token", "token-" + uid, "--timeout", "1m"}, args...)); err != nil {
		t.Fatal(err)
	}
	return c
}

func events(t *testing.T, out string) []event {
	var list []event
	for line := range strings.Lines(out) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}

func only(list []event, kind string) []event {
	return slices.DeleteFunc(slices.Clone(list), func(e event) bool { return e.Event != kind })
}

func TestChat(t *testing.T) {
	for _, scheme := range []string{"ws", "tcp"} {
		t.Run(scheme, func(t *testing.T) {
			g := clienttest.Listen(t, scheme)
			const n = 30
			var heard bytes.Buffer
			bob := make(chan error, 1)
			go func() {
				c := chatOf(t, g, "bob", "--json", "--wait-received", fmt.Sprint(n))
				bob <- c.chat(t.Context(), strings.NewReader(""), &heard)
			}()
			var input strings.Builder
			for i := range n {
				fmt.Fprintf(&input, `{"to":"bob","text":"line %d","uuid":"u%d"}`+"\n\n", i, i)
			}
			var said bytes.Buffer
			alice := chatOf(t, g, "alice", "--json", "--wait-delivered", "--queue-max", "5")
			if err := alice.chat(t.Context(), strings.NewReader(input.String()), &said); err != nil {
				t.Fatalf("%v\n%s", err, said.String())
			}
			if err := <-bob; err != nil {
				t.Fatal(err)
			}
			for i, e := range only(events(t, heard.String()), "message") {
				if e.Text != fmt.Sprint("line ", i) || e.Seq != int64(i+1) || e.From != "alice" || e.UUID != fmt.Sprint("u", i) {
					t.Errorf("message %d: %+v", i, e)
				}
			}
			states := map[string][]string{}
			all := events(t, said.String())
			for _, e := range only(all, "state") {
				states[e.UUID] = append(states[e.UUID], e.State)
			}
			for i := range n {
				if got := strings.Join(states[fmt.Sprint("u", i)], " "); got != "LOCAL SENT STORED DELIVERED" {
					t.Errorf("states of u%d: %s", i, got)
				}
			}
			if last := all[len(all)-1]; last.Event != "connection" || last.State != "closed" {
				t.Errorf("last event: %+v", last)
			}
		})
	}
}

// TestChatForPeople: what others write cannot steer the terminal, and bad lines do not end the talk.
func TestChatForPeople(t *testing.T) {
	g := clienttest.Listen(t, "tcp")
	var heard, said bytes.Buffer
	alice := chatOf(t, g, "alice", "--to", "bob")
	if err := alice.chat(t.Context(), strings.NewReader("evil \x1b[2J\n"), &said); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "[evil ·[2J] STORED #1") || strings.Contains(said.String(), "\x1b") {
		t.Errorf("said:\n%s", said.String())
	}
	bob := chatOf(t, g, "bob", "--wait-received", "1")
	if err := bob.chat(t.Context(), strings.NewReader("nobody hears this\n"), &heard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-- connected as bob", "-- no receiver", "alice: evil ·[2J"} {
		if !strings.Contains(heard.String(), want) {
			t.Errorf("%q is not in:\n%s", want, heard.String())
		}
	}
}

func TestChatCount(t *testing.T) {
	g := clienttest.Listen(t, "ws")
	var out bytes.Buffer
	c := chatOf(t, g, "alice", "--json", "--to", "bob", "--count", "3", "--login", "header")
	if err := c.chat(t.Context(), strings.NewReader("ignored\n"), &out); err != nil {
		t.Fatal(err)
	}
	stored := g.Stored("u:alice:bob")
	if len(stored) != 3 || stored[2].Content != "3" {
		t.Errorf("stored: %v", stored)
	}
}

// TestChatGoesOn: what one process could not send, the next one with the same directory does.
func TestChatGoesOn(t *testing.T) {
	g := clienttest.Listen(t, "tcp")
	dir := filepath.Join(t.TempDir(), "state")
	g.Decide(func(_ string, cmd *clientv1.Command) clienttest.Fate {
		if cmd.Type == clientv1.CommandType_MESSAGEUP {
			return clienttest.Ignore
		}
		return clienttest.Handle
	})
	ctx, cancel := context.WithCancel(t.Context())
	out := &watched{want: `"SENT"`, seen: cancel}
	if err := chatOf(t, g, "alice", "--json", "--to", "bob", "--state-dir", dir).chat(ctx, strings.NewReader(`{"text":"hi","uuid":"u1"}`), out); err != nil {
		t.Fatal(err)
	}
	g.Decide(nil)
	var again bytes.Buffer
	if err := chatOf(t, g, "alice", "--json", "--state-dir", dir).chat(t.Context(), strings.NewReader(""), &again); err != nil {
		t.Fatal(err)
	}
	if stored := g.Stored("u:alice:bob"); len(stored) != 1 || stored[0].Uuid != "u1" {
		t.Errorf("stored: %v\n%s", stored, again.String())
	}
}

// watched calls seen when want is written.
type watched struct {
	want string
	seen func()
}

func (w *watched) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.want) {
		w.seen()
	}
	return len(p), nil
}

func TestChatEndsBadly(t *testing.T) {
	g := clienttest.Listen(t, "ws")
	c := chatOf(t, g, "alice", "--to", "bob")
	c.Token = "nonsense"
	hanging, stop := io.Pipe()
	defer func() { _ = stop.Close() }()
	for name, in := range map[string]io.Reader{"hanging input": hanging, "no input": strings.NewReader("")} {
		var ending *client.Ending
		if err := c.chat(t.Context(), in, io.Discard); !errors.As(err, &ending) || ending.Reason != "bad_token" {
			t.Errorf("bad token, %s: %v", name, err)
		}
	}
	c = chatOf(t, g, "alice", "--wait-received", "1")
	c.Timeout = 10 * time.Millisecond
	if err := c.chat(t.Context(), strings.NewReader(""), io.Discard); !errors.Is(err, errChatTimeout) {
		t.Errorf("timeout: %v", err)
	}
	c = chatOf(t, g, "alice")
	c.URL = "http://nowhere"
	if err := c.chat(t.Context(), strings.NewReader(""), io.Discard); !errors.Is(err, program.ErrUsage) {
		t.Errorf("bad URL: %v", err)
	}
	c = chatOf(t, g, "alice", "--linger")
	broken, end := io.Pipe()
	_ = broken.Close()
	if err := c.chat(t.Context(), strings.NewReader(""), end); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("output closed: %v", err)
	}
}
