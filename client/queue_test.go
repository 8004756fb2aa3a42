package client_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluice-im/sluice/client"
	"github.com/sluice-im/sluice/client/clienttest"
)

const childEnv = "SLUICE_TEST_QUEUE"

// runChild is the process that TestQueueSurvivesKill kills: it queues messages for a server that is not there.
func runChild() bool {
	path := os.Getenv(childEnv)
	if path == "" {
		return false
	}
	cfg := client.Default()
	cfg.URL, cfg.Token, cfg.Queue = "tcp://127.0.0.1:1", "t", client.NewFileQueue(path)
	c, err := client.New(cfg)
	if err != nil {
		fmt.Println(err)
		return true
	}
	for i := 0; ; i++ {
		if _, err := c.Send(client.Draft{UUID: fmt.Sprint("u", i), To: "bob", Content: strings.Repeat("x", i)}); err != nil {
			fmt.Println(err)
			return true
		}
		fmt.Println("u", i)
	}
}

// TestQueueSurvivesKill: whatever moment the process is killed at, every message that Send accepted is in the file.
func TestQueueSurvivesKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "queue.json")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	accepted := 0
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "u ") {
			t.Fatal(lines.Text())
		}
		if accepted++; accepted == 50 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // It was killed.
	pending, err := client.NewFileQueue(path).Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(pending) < accepted || len(pending) > accepted+1 {
		t.Errorf("%d messages were accepted, %d are in the file", accepted, len(pending))
	}
	for i, p := range pending {
		if p.UUID != fmt.Sprint("u", i) || len(p.Content) != i {
			t.Fatalf("message %d: %+v", i, p)
		}
	}
}

// TestRunsContinue: a second run sends what the first could not, and receives nothing twice.
func TestRunsContinue(t *testing.T) {
	g := clienttest.Listen(t, "tcp")
	dir := t.TempDir()
	persisted := func(c *client.Config) {
		c.Queue = client.NewFileQueue(filepath.Join(dir, "queue.json"))
		c.Watermarks = client.NewFileWatermarks(filepath.Join(dir, "marks.json"))
	}
	bob := start(t, g.URL, "bob", nil)
	alice := start(t, g.URL, "alice", persisted)
	if _, err := bob.wait(bob.send(client.Draft{To: "alice", Content: "one"})); err != nil {
		t.Fatal(err)
	}
	alice.until("first message", func() bool { return len(alice.messages) == 1 })
	alice.Close()
	if err := <-alice.end; err != nil {
		t.Fatal(err)
	}

	offline := client.Default()
	offline.URL, offline.Token = g.URL, "token-alice"
	persisted(&offline)
	c, err := client.New(offline)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Send(client.Draft{UUID: "later", To: "bob", Content: "two", Body: []byte{0, 255}}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := bob.wait(bob.send(client.Draft{To: "alice", Content: "three"})); err != nil {
		t.Fatal(err)
	}

	again := start(t, g.URL, "alice", persisted)
	again.until("third message", func() bool { return len(again.messages) > 0 })
	bob.until("second message", func() bool { return len(bob.messages) == 1 && bob.messages[0].UUID == "later" })
	if m := again.messages; len(m) != 1 || m[0].Content != "three" {
		t.Errorf("second run received %+v", m)
	}
	other := start(t, g.URL, "bob", persisted)
	if err := <-other.end; err == nil || !strings.Contains(err.Error(), client.ErrOtherUser.Error()) {
		t.Errorf("another user with the same marks: %v", err)
	}
}

func TestQueues(t *testing.T) {
	dir := t.TempDir()
	for name, q := range map[string]client.Queue{
		"memory": &client.MemoryQueue{}, "file": client.NewFileQueue(filepath.Join(dir, "queue.json")),
	} {
		t.Run(name, func(t *testing.T) {
			at := time.UnixMilli(1_700_000_000_000).UTC()
			a := client.Pending{UUID: "a", To: "bob", Type: 1, Content: "hi", Body: []byte{1, 2}, QueuedAt: at}
			b := client.Pending{UUID: "b", To: "bob", QueuedAt: at}
			failed := a
			failed.Failed = "timeout"
			for _, step := range []struct {
				do   func() error
				want []client.Pending
			}{
				{func() error { return nil }, nil},
				{func() error { return q.Save(a) }, []client.Pending{a}},
				{func() error { return q.Save(b) }, []client.Pending{a, b}},
				{func() error { return q.Save(failed) }, []client.Pending{failed, b}},
				{func() error { return q.Remove("a") }, []client.Pending{b}},
				{func() error { return q.Remove("a") }, []client.Pending{b}},
				{func() error { return q.Close() }, []client.Pending{b}},
			} {
				if err := step.do(); err != nil {
					t.Fatal(err)
				}
				got, err := q.Load()
				if err != nil || len(got) != len(step.want) || (len(got) > 0 && !reflect.DeepEqual(got, step.want)) {
					t.Fatalf("loaded %+v, %v; want %+v", got, err, step.want)
				}
			}
		})
	}
}

// TestDamagedFiles: what cannot be read is never overwritten.
func TestDamagedFiles(t *testing.T) {
	for name, content := range map[string]string{"cut": `{"version":1,`, "future": `{"version":2}`} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := client.NewFileQueue(path).Load(); err == nil {
			t.Errorf("%s: the queue loads", name)
		}
		if _, err := client.NewFileWatermarks(path).Load(); err == nil {
			t.Errorf("%s: the watermarks load", name)
		}
	}
}

// TestFullDisk: a message that cannot be saved is not accepted, and does not turn up later.
func TestFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	q := client.NewFileQueue(filepath.Join(dir, "queue.json"))
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := q.Save(client.Pending{UUID: "lost"}); err == nil {
		t.Fatal("saved into a directory that is not there")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := q.Save(client.Pending{UUID: "kept"}); err != nil {
		t.Fatal(err)
	}
	if got, err := q.Load(); err != nil || len(got) != 1 || got[0].UUID != "kept" {
		t.Errorf("loaded %+v, %v", got, err)
	}
}
