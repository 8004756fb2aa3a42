package core

import (
	"flag"
	"log"
	"os"
	"testing"
)

// TestMain makes the random conversations long enough for what needs several things to go wrong: most of the seeded
// mutations are only found beyond 100 steps. The whole of it still takes less than a second.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.steps": "150", "rapid.checks": "300"} {
		if err := flag.Set(name, value); err != nil {
			log.Fatal(err)
		}
	}
	os.Exit(m.Run())
}
