package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/sluice-im/sluice/test/cluster"
)

const (
	stopped   = syscall.SIGSTOP
	continued = syscall.SIGCONT
)

// browser is one tab with the page.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu sync.Mutex
	// Guarded by mu.
	sent   []string // what the page wrote to its connections
	faults []string // what the page did wrong
}

// open starts a browser of its own, with a profile of its own, and goes to url.
func open(t *testing.T, url string) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: make deps installs it", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1180, 760),
		chromedp.WSURLReadTimeout(within))
	all, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(all)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	b.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{})
		return err
	}))
	if err := chromedp.Listen(ctx, b.see); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Navigate(url))
	return b
}

// see takes what the browser tells of the page.
func (b *browser) see(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventWebSocketFrameSent:
		b.sent = append(b.sent, string(ev.Response.PayloadData))
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, ev.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		// A connection that fails is part of the test; everything else, such as a breach of the page's policy, is not.
		if e := ev.Entry; e.Level == log.EntryLevelError && e.Source != log.EntrySourceNetwork && !strings.Contains(e.Text, "WebSocket connection to") {
			b.faults = append(b.faults, e.Text)
		}
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) reload() { b.t.Helper(); b.do(chromedp.Reload()) }

// clean fails if the page threw or broke its own policy.
func (b *browser) clean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.faults) > 0 {
		b.t.Errorf("the page did wrong:\n%s", strings.Join(b.faults, "\n"))
	}
}

// sentAgain waits until the page has sent a message with this text at least twice, always with one uuid.
func (b *browser) sentAgain(text string) {
	b.t.Helper()
	uuids := map[string]int{}
	cluster.Eventually(b.t, within, "sent twice: "+text, func() bool {
		clear(uuids)
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, frame := range b.sent {
			var c struct {
				MessageUp struct{ UUID, Content string }
			}
			if json.Unmarshal([]byte(frame), &c) == nil && c.MessageUp.Content == text {
				uuids[c.MessageUp.UUID]++
			}
		}
		for _, n := range uuids {
			if n >= 2 {
				return true
			}
		}
		return false
	})
	if len(uuids) != 1 {
		b.t.Errorf("%q was sent with %d uuids", text, len(uuids))
	}
}

// screenshot leaves a picture of the page with the test's artifacts (go test -artifacts keeps them).
func (b *browser) screenshot(name string) {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	file := filepath.Join(b.t.ArtifactDir(), name)
	if err := os.WriteFile(file, png, 0o644); err != nil {
		b.t.Fatal(err)
	}
	b.t.Logf("screenshot: %s", file)
}

// pane is one user's half of the page.
type pane struct {
	*browser
	uid string
}

func (b *browser) pane(uid string) *pane { return &pane{b, uid} }

// message is one that is shown.
type message struct {
	Text, State string
	Own         bool
}

func (p *pane) messages() []message {
	p.t.Helper()
	list, err := chromedp.Run(p.ctx, chromedp.Evaluate[[]message](fmt.Sprintf(
		`[...document.querySelectorAll("#%s li")].map((li) => ({ Text: li.textContent, State: li.dataset.state ?? "", Own: li.className === "own" }))`, p.uid)))
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}

// waitFor waits until the pane's messages are as they should be.
func (p *pane) waitFor(what string, cond func([]message) bool) {
	p.t.Helper()
	var last []message
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s shows %+v", p.uid, last)
		}
	}()
	cluster.Eventually(p.t, within, p.uid+": "+what, func() bool { last = p.messages(); return cond(last) })
}

// own waits until the user's own message is in a state, and there once.
func (p *pane) own(text, state string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf("%q is %s", text, state), func(all []message) bool {
		n := 0
		for _, m := range all {
			if m.Text == text {
				n++
			}
		}
		return n == 1 && slices.Contains(all, message{text, state, true})
	})
}

// shows waits until somebody else's message is there.
func (p *pane) shows(text string) {
	p.t.Helper()
	p.waitFor("shows "+text, func(all []message) bool { return slices.Contains(all, message{Text: text}) })
}

// holds waits until exactly these messages are there, each once.
func (p *pane) holds(texts []string) {
	p.t.Helper()
	p.waitFor(fmt.Sprintf("holds %q", texts), func(all []message) bool {
		if len(all) != len(texts) {
			return false
		}
		for _, text := range texts {
			if !slices.ContainsFunc(all, func(m message) bool { return m.Text == text }) {
				return false
			}
		}
		return true
	})
}

// sameOrder: both sides see one conversation.
func sameOrder(t *testing.T, a, b *pane) {
	t.Helper()
	left, right := a.messages(), b.messages()
	if !slices.EqualFunc(left, right, func(l, r message) bool { return l.Text == r.Text && l.Own != r.Own }) {
		t.Errorf("%s sees %+v\n%s sees %+v", a.uid, left, b.uid, right)
	}
}

func (p *pane) online() {
	p.t.Helper()
	cluster.Eventually(p.t, within, p.uid+" online", func() bool {
		on, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool](fmt.Sprintf(`document.querySelector("#%s.online") !== null`, p.uid)))
		if err != nil {
			p.t.Fatal(err)
		}
		return on
	})
}

// write types a line and presses Enter.
func (p *pane) write(text string) {
	p.t.Helper()
	p.do(chromedp.SendKeys(chromedp.CSS("#"+p.uid+" input"), text+"\r"))
}

// toggle presses the button that cuts the line or connects again.
func (p *pane) toggle() {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS("#" + p.uid + " h2 button")))
}
