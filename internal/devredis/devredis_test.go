package devredis_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/internal/devredis"
	"github.com/sluice-im/sluice/internal/testenv/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func start(t *testing.T) *redis.Client {
	t.Helper()
	s, err := devredis.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() {
		_ = rdb.Close()
		s.Close()
		s.Close() // twice is harmless
	})
	return rdb
}

func TestKeysExpireInRealTime(t *testing.T) {
	rdb, ctx := start(t), context.Background()
	begun := time.Now()
	if err := rdb.Set(ctx, "k", "v", 150*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(ctx, "stays", "v", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	for rdb.Exists(ctx, "k").Val() == 1 {
		if time.Since(begun) > 10*time.Second {
			t.Fatal("the key does not expire")
		}
	}
	if lived := time.Since(begun); lived < 100*time.Millisecond { // it may go one tick too early
		t.Fatalf("the key of 150 ms lived %v", lived)
	}
	left := rdb.PTTL(ctx, "stays").Val()
	if passed := time.Hour - left; passed < 100*time.Millisecond || passed > time.Minute {
		t.Fatalf("an hour has %v left", left)
	}
}

func TestTimeIsNow(t *testing.T) {
	rdb := start(t)
	before := time.Now().Add(-time.Millisecond)
	got, err := rdb.Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	if got.Before(before) || got.After(time.Now().Add(time.Millisecond)) {
		t.Fatalf("TIME says %v", got)
	}
}

func TestRunIDDiffersBetweenRuns(t *testing.T) {
	ctx := context.Background()
	ids := make(map[string]bool)
	for range 2 {
		info, err := start(t).Info(ctx, "SERVER").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok := strings.Cut(info, "\r\nrun_id:")
		id, _, _ := strings.Cut(rest, "\r\n")
		if !ok || len(id) != 40 {
			t.Fatalf("INFO server: %q", info)
		}
		ids[id] = true
	}
	if len(ids) != 2 {
		t.Fatal("two runs have one run_id")
	}
}

func TestInfoOfOtherSectionsIsTheEmbeddedServers(t *testing.T) {
	if info, err := start(t).Info(context.Background(), "clients").Result(); err != nil || !strings.Contains(info, "connected_clients:") {
		t.Fatalf("INFO clients: %q, %v", info, err)
	}
}

func TestPortTakenIsAnError(t *testing.T) {
	s, err := devredis.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if second, err := devredis.Start(s.Addr()); err == nil {
		second.Close()
		t.Fatal("two servers on one port")
	}
}
