package store

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func hookCursors(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	ctx := t.Context()
	l := lease(t, db)
	told := func(hook string, want int64) {
		t.Helper()
		if got, err := db.StartHook(ctx, hook, l); err != nil || got != want {
			t.Errorf("cursor of %s is %d, want %d; %v", hook, got, want, err)
		}
	}
	l.Mark = 5
	told("stored", 5)
	l.Mark = 50
	told("stored", 5)
	told("offline", 50)
	if err := errors.Join(db.SaveHook(ctx, "stored", l.Node, 9), db.SaveHook(ctx, "stored", l.Node, 7)); err != nil {
		t.Fatal(err)
	}
	told("stored", 9)
	r := mustAppend(t, db, l, s, message(s, "a", "b", "1", "x"))
	mark := r[0].MsgID + 100
	if err := db.SaveMark(ctx, l, mark); err != nil {
		t.Fatal(err)
	}
	if c, ok, err := db.ClaimHook(ctx, "stored", "x", time.Minute); ok || err != nil {
		t.Fatalf("claimed %+v of a node that is held: %v", c, err)
	}
	end(t, db, l.Node)
	c, ok, err := db.ClaimHook(ctx, "stored", "x", time.Minute)
	if err != nil || !ok || c != (HookCursor{Node: l.Node, Told: 9, Mark: mark}) {
		t.Fatalf("claimed %+v, %v, %v", c, ok, err)
	}
	if c, ok, err := db.ClaimHook(ctx, "stored", "y", time.Minute); ok || err != nil {
		t.Fatalf("claimed by two: %+v, %v", c, err)
	}
	<-time.After(2 * time.Millisecond) // MySQL counts a row only when its lease changed
	if _, ok, err := db.ClaimHook(ctx, "stored", "x", time.Minute); !ok || err != nil {
		t.Fatalf("not claimed again by the same: %v", err)
	}
	if _, ok, err := db.ClaimHook(ctx, "offline", "y", time.Minute); !ok || err != nil {
		t.Fatalf("another hook of the same node: %v", err)
	}
	if err := db.SaveHook(ctx, "stored", l.Node, mark); err != nil {
		t.Fatal(err)
	}
	if c, ok, err := db.ClaimHook(ctx, "stored", "x", time.Minute); ok || err != nil {
		t.Fatalf("claimed with everything told: %+v, %v", c, err)
	}
	if err := errors.Join(db.DropHook(ctx, "stored", l.Node), db.DropHook(ctx, "stored", l.Node)); err != nil {
		t.Fatal(err)
	}
	l.Mark = mark + 1
	told("stored", mark+1)
}

func rosters(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	ctx := t.Context()
	l := lease(t, db)
	if err := db.CreateGroup(ctx, "g:x", []string{"a", "b"}, 1); err != nil {
		t.Fatal(err)
	}
	roster := func() int64 {
		t.Helper()
		n, err := db.Roster(ctx, "g:x")
		if err != nil || n == 0 {
			t.Fatalf("roster %d, %v", n, err)
		}
		return n
	}
	first := roster()
	to := func(uuid string, roster int64) Message {
		m := message(s, "a", "g:x", uuid, "x")
		m.Roster = roster
		return m
	}
	if r := mustAppend(t, db, l, s, to("1", first))[0]; r.Outcome != Stored || r.Seq != 1 {
		t.Fatalf("%+v", r)
	}
	if _, err := db.AddMembers(ctx, "g:x", []string{"a"}, 2); err != nil || roster() != first {
		t.Errorf("nobody came and the roster moved, %v", err)
	}
	if _, err := db.AddMembers(ctx, "g:x", []string{"c"}, 2); err != nil || roster() <= first {
		t.Errorf("somebody came and the roster did not move, %v", err)
	}
	second := roster()
	// In one batch with others; the number is given to who is in order.
	rs := mustAppend(t, db, l, s, to("2", first), to("3", second), message(s, "a", "b", "4", "x"), to("2", first))
	if rs[0].Outcome != Moved || rs[1].Outcome != Stored || rs[1].Seq != 2 || rs[2].Outcome != Stored || rs[3].Outcome != Moved {
		t.Errorf("%+v", rs)
	}
	if _, err := db.RemoveMembers(ctx, "g:x", []string{"b"}, 2); err != nil || roster() <= second {
		t.Errorf("somebody left and the roster did not move, %v", err)
	}
	for seq, want := range map[int64][]string{1: {"a"}, 2: {"a", "c"}} {
		if got, err := db.Entitled(ctx, "g:x", seq, 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("number %d is for %q, %v", seq, got, err)
		}
	}
	if _, err := db.Roster(ctx, "g:none"); !errors.Is(err, ErrNoSuchGroup) {
		t.Errorf("roster of no group: %v", err)
	}
}
