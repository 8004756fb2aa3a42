package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-im/sluice/internal/testenv/leaks"
)

// childPath makes this test binary a child that stores messages one by one and says what became of each.
const childPath = "SLUICE_TEST_STORE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		storeAndTell(path)
		return
	}
	leaks.Main(m)
}

const childMessages = 30

func storeAndTell(path string) {
	runtime.LockOSThread() // strace counts the syncs of each thread, and this one makes them
	ctx := context.Background()
	db, err := openSQLite(ctx, path, withDefaults(Options{}), sameConnector)
	if err != nil {
		fmt.Println("open", err)
		return
	}
	s := &ids{}
	l, err := db.LeaseNode(ctx, "child", time.Minute)
	if err != nil {
		fmt.Println("lease", err)
		return
	}
	for i := range childMessages {
		m := message(s, "a", "b", fmt.Sprint(i), "x")
		_, err := db.Append(ctx, &Batch{Messages: []Message{m}, NewID: s.draw, Lease: l})
		switch {
		case err == nil:
			fmt.Println("stored", m.UUID)
		case errors.Is(err, ErrUnknown):
			found, err := db.Resolve(ctx, []Key{{"a", m.UUID}})
			_, ok := found[Key{"a", m.UUID}]
			fmt.Println("unknown", m.UUID, "found", ok, err)
		default:
			fmt.Println("failed", m.UUID, err)
		}
	}
	fmt.Println("closed", db.Close())
}

// TestSQLiteSyncFails lets the n-th sync of the file fail as a dying disk would. A message is never called stored by the
// commit whose sync failed; what the look afterwards finds has been written and synced once more; and all goes on.
func TestSQLiteSyncFails(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed: it is what makes a sync fail")
	}
	told := 0
	for _, when := range []string{"20", "21", "22", "23", "24", "25+3"} {
		t.Run(when, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s.db")
			cmd := exec.Command(strace, "-f", "-o", os.DevNull, "-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO:when="+when, os.Args[0])
			cmd.Env = append(os.Environ(), childPath+"="+path)
			out, err := cmd.Output()
			text := string(out)
			if err != nil || !strings.Contains(text, "closed") {
				t.Fatalf("child: %v\n%s", err, text)
			}
			told += strings.Count(text, "unknown")
			db, err := openSQLite(t.Context(), path, withDefaults(Options{}), sameConnector)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			rows := map[string]bool{}
			for _, m := range stored(t, db, "u:a:b") {
				rows[m.UUID] = true
			}
			for line := range strings.Lines(text) {
				var uuid string
				switch f := strings.Fields(line); f[0] {
				case "stored":
					uuid = f[1]
				case "unknown":
					if f[3] == "true" {
						uuid = f[1]
					}
				}
				if uuid != "" && !rows[uuid] {
					t.Errorf("%s was called stored and is not there\n%s", uuid, text)
				}
			}
		})
	}
	// How many syncs the opening makes is not said here, so a single run may fail at another place.
	if told == 0 {
		t.Error("syncs failed and nobody was told")
	}
}
