package snowflake

import (
	"errors"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// TestIDsOnlyGrow lets the clock do what it likes, over restarts that know no more than the reserved time.
func TestIDsOnlyGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := rapid.IntRange(0, NodesMax-1).Draw(t, "node")
		now := int64(Epoch + 1_000_000)
		reserved := now + 50
		g := New(node, now-1, reserved)
		last := int64(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"id", "burst", "clock", "renew", "restart"}).Draw(t, "step") {
			case "id", "burst":
				for range rapid.SampledFrom([]int{1, 5000}).Draw(t, "count") {
					id, err := g.Next(now)
					if errors.Is(err, ErrExhausted) {
						break
					}
					if id <= last {
						t.Fatalf("id %d after %d", id, last)
					}
					if Time(id) > reserved || Node(id) != node {
						t.Fatalf("id %d: time %d above %d, or node %d", id, Time(id), reserved, Node(id))
					}
					last = id
				}
			case "clock":
				now = max(Epoch, now+rapid.Int64Range(-3_600_000, 3_600_000).Draw(t, "ms"))
			case "renew":
				reserved = max(reserved, now+50, g.Last()+50)
				g.Allow(reserved)
			case "restart":
				g = New(node, reserved, reserved)
			}
		}
	})
}

func TestExhausted(t *testing.T) {
	g := New(1, Epoch, Epoch+1)
	for i := range counterMax + 1 {
		if _, err := g.Next(Epoch); err != nil {
			t.Fatalf("id %d: %v", i, err)
		}
	}
	if _, err := g.Next(Epoch); !errors.Is(err, ErrExhausted) {
		t.Fatalf("%v, want ErrExhausted", err)
	}
	g.Allow(Epoch + 2)
	g.Allow(Epoch)
	if id, err := g.Next(Epoch); err != nil || Time(id) != Epoch+2 {
		t.Fatalf("%d, %v", Time(id), err)
	}
}

func TestNextIsSafe(t *testing.T) {
	g := New(3, Epoch, 1<<50)
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				id, err := g.Next(Epoch + 5)
				mu.Lock()
				if err != nil || seen[id] {
					t.Errorf("id %d twice, or %v", id, err)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}
