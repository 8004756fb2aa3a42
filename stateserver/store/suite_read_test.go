package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

func reads(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	var batch []Message
	for i := range 10 {
		batch = append(batch, message(s, "a", "b", fmt.Sprint(i), "x"))
	}
	rs := mustAppend(t, db, l, s, batch...)
	var seqs []int64
	err := db.Scan(t.Context(), "u:a:b", 3, 5, func(m *Message) bool {
		seqs = append(seqs, m.Seq)
		return m.Seq < 6
	})
	if err != nil || !slices.Equal(seqs, []int64{4, 5, 6}) {
		t.Errorf("scan: %v, %v", seqs, err)
	}
	ms, err := db.Load(t.Context(), []int64{rs[2].MsgID, 999999, rs[7].MsgID})
	if err != nil || len(ms) != 2 || ms[0].Seq+ms[1].Seq != 11 {
		t.Errorf("load: %+v, %v", ms, err)
	}
	ms, err = db.Above(t.Context(), l.Node, rs[6].MsgID, 2)
	if err != nil || len(ms) != 2 || ms[0].Seq != 8 || ms[1].Seq != 9 {
		t.Errorf("above: %+v, %v", ms, err)
	}
	if ms, err = db.Above(t.Context(), l.Node+1, 0, 10); err != nil || len(ms) != 0 {
		t.Errorf("above of another node: %+v, %v", ms, err)
	}
	found, err := db.Find(t.Context(), []Key{{"a", "3"}, {"b", "3"}})
	if err != nil || len(found) != 1 || found[Key{"a", "3"}].Seq != 4 || found[Key{"a", "3"}].Hash != batch[3].Hash {
		t.Errorf("find: %+v, %v", found, err)
	}
}

func nodeLeases(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	ctx := t.Context()
	a, err := db.LeaseNode(ctx, "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	b, err := db.LeaseNode(ctx, "b", time.Minute)
	if err != nil || b.Node == a.Node {
		t.Fatalf("two leases: %+v and %+v, %v", a, b, err)
	}
	r := mustAppend(t, db, a, s, message(s, "a", "b", "1", "x"), message(s, "a", "b", "2", "x"))
	if err := errors.Join(db.SaveMark(ctx, a, r[0].MsgID), db.SaveMark(ctx, a, 0), db.SaveMark(ctx, a, r[0].MsgID), db.RenewNode(ctx, a, time.Minute, 777), db.RenewNode(ctx, a, time.Minute, 5)); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := db.TakeOver(ctx, "c", time.Minute); ok || err != nil {
		t.Fatalf("took over a node whose lease stands: %v", err)
	}
	end(t, db, a.Node)
	end(t, db, b.Node)
	if _, ok, err := db.TakeOver(ctx, "a", time.Minute); ok || err != nil {
		t.Fatalf("took over the own node: %v", err)
	}
	got, ok, err := db.TakeOver(ctx, "c", time.Minute)
	if err != nil || !ok || got.Node != a.Node || got.Mark != r[0].MsgID || got.IDsUntil != 777 {
		t.Fatalf("take over: %+v, %v, %v", got, ok, err)
	}
	if _, ok, err := db.TakeOver(ctx, "d", time.Minute); ok || err != nil {
		t.Fatalf("a node without messages above its mark was taken over: %v", err)
	}
	for op, err := range map[string]error{"renew": db.RenewNode(ctx, a, time.Minute, 1), "mark": db.SaveMark(ctx, a, 1)} {
		if !errors.Is(err, ErrLeaseLost) {
			t.Errorf("%s with a lost lease: %v", op, err)
		}
	}
	if err := db.ReleaseNode(ctx, a, 1); err != nil {
		t.Errorf("release of a lost lease: %v", err)
	}
	if f.shared {
		if _, err := db.Append(ctx, &Batch{Messages: []Message{message(s, "a", "b", "3", "x")}, NewID: s.draw, Lease: a}); !errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrUnknown) {
			t.Errorf("append with a lost lease: %v", err)
		}
	}
	if err := db.ReleaseNode(ctx, got, 888); err != nil {
		t.Fatal(err)
	}
	other, err := db.LeaseNode(ctx, "f", time.Minute)
	if err != nil || other.Node != b.Node {
		t.Errorf("with messages above the mark of node %d the lease is %+v, %v", a.Node, other, err)
	}
	if got, ok, err = db.TakeOver(ctx, "g", time.Minute); !ok || err != nil {
		t.Fatalf("take over again: %v", err)
	}
	if err := errors.Join(db.SaveMark(ctx, got, r[1].MsgID), db.ReleaseNode(ctx, got, 888)); err != nil {
		t.Fatal(err)
	}
	again, err := db.LeaseNode(ctx, "e", time.Minute)
	if err != nil || again.Node != a.Node || again.IDsUntil != 888 || again.Mark != r[1].MsgID {
		t.Errorf("lease after release: %+v, %v", again, err)
	}
	idsAhead(t, db, again)
}

// idsAhead releases a node whose ids are ahead of the clock: it is leased again only when there is no other.
func idsAhead(t *testing.T, db *Database, again NodeLease) {
	ctx := t.Context()
	ahead := time.Now().Add(time.Hour).UnixMilli()
	if err := db.ReleaseNode(ctx, again, ahead); err != nil {
		t.Fatal(err)
	}
	fresh, err := db.LeaseNode(ctx, "h", time.Minute)
	if err != nil || fresh.Node == again.Node || fresh.IDsUntil > ahead-1000 {
		t.Errorf("with ids of node %d ahead of the clock the lease is %+v, %v", again.Node, fresh, err)
	}
	if _, err := db.w.Exec("INSERT INTO im_node (node_id, owner, lease_until, mark, id_ms) VALUES (?, '', ?, 0, 0)", NodesMax-1, ahead); err != nil {
		t.Fatal(err)
	}
	if last, err := db.LeaseNode(ctx, "i", time.Minute); err != nil || last.Node != again.Node || last.IDsUntil != ahead {
		t.Errorf("with all others leased: %+v, %v", last, err)
	}
	if l, err := db.LeaseNode(ctx, "j", time.Minute); err == nil {
		t.Errorf("with all leased: %+v", l)
	}
}

// end lets the lease of a node be over.
func end(t *testing.T, db *Database, node int) {
	t.Helper()
	if _, err := db.w.Exec("UPDATE im_node SET lease_until = 1 WHERE node_id = ?", node); err != nil {
		t.Fatal(err)
	}
}

func positions(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	for i := range 5 {
		mustAppend(t, db, l, s, message(s, "a", "b", fmt.Sprint(i), "x"))
	}
	mustAppend(t, db, l, s, message(s, "a", "c", "other", "x"))
	const conv = "u:a:b"
	for _, step := range []struct {
		name string
		p    Position
		want Position
	}{
		{"forward", Position{"b", conv, 3, 0}, Position{"b", conv, 3, 0}},
		{"back", Position{"b", conv, 1, 0}, Position{"b", conv, 3, 0}},
		{"read implies delivered", Position{"b", conv, 0, 4}, Position{"b", conv, 4, 4}},
		{"the future is clamped", Position{"b", conv, 1 << 60, 1 << 60}, Position{"b", conv, 5, 5}},
		{"negative", Position{"b", conv, -7, -7}, Position{"b", conv, 5, 5}},
	} {
		out, err := db.Advance(t.Context(), []Position{{"x", conv, 5, 5}, step.p, {"a", "u:a:c", 1, 0}, {"a", "u:nobody:x", 1, 0}}, 50)
		if err != nil {
			t.Fatal(err)
		}
		if out[0].Member || out[3].Member || !out[1].Member || !out[2].Member {
			t.Errorf("%s: members %+v", step.name, out)
		}
		if out[1].After != step.want {
			t.Errorf("%s: %+v, want %+v", step.name, out[1].After, step.want)
		}
	}
	m, err := db.Member(t.Context(), "b", conv)
	if err != nil || m.ReadSeq != 5 || m.Delivered != 5 || m.MaxSeq != 5 {
		t.Errorf("member: %+v, %v", m, err)
	}
	if _, err := db.Member(t.Context(), "x", conv); !errors.Is(err, ErrNotMember) {
		t.Errorf("stranger: %v", err)
	}
	// More pairs than one query holds.
	many := make([]Position, 0, 3*lookupPairsMax)
	for i := range 3 * lookupPairsMax {
		many = append(many, Position{fmt.Sprintf("s%d", i), conv, 1, 1})
	}
	many[2*lookupPairsMax] = Position{"a", conv, 5, 2}
	out, err := db.Advance(t.Context(), many, 60)
	if err != nil || !out[2*lookupPairsMax].Member || out[2*lookupPairsMax].After.Read != 2 {
		t.Errorf("many: %v", err)
	}
}

func conversations(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{next: 1000}
	l := lease(t, db)
	mustAppend(t, db, l, s, message(s, "a", "b", "1", "x"), message(s, "a", "b", "2", "x"), message(s, "b", "a", "3", "x"), message(s, "c", "a", "4", "x"), message(s, "d", "e", "5", "x"))
	if _, err := db.Advance(t.Context(), []Position{{"b", "u:a:b", 2, 1}}, 500); err != nil {
		t.Fatal(err)
	}
	got, err := db.Conversations(t.Context(), SyncQuery{UID: "a", Limit: 10})
	if err != nil || len(got) != 2 {
		t.Fatalf("conversations: %+v, %v", got, err)
	}
	if c := got[0]; c.ConvID != "u:a:b" || c.MaxSeq != 3 || c.PeerDelivered != 2 || c.PeerRead != 1 || c.Unread != 1 {
		t.Errorf("%+v", c)
	}
	if c := got[1]; c.ConvID != "u:a:c" || c.MaxSeq != 1 || c.Unread != 1 {
		t.Errorf("%+v", c)
	}
	if got, err = db.Conversations(t.Context(), SyncQuery{UID: "a", After: "u:a:b", Limit: 1}); err != nil || len(got) != 1 || got[0].ConvID != "u:a:c" {
		t.Errorf("second page: %+v, %v", got, err)
	}
	since := s.next + 1_000_000
	if got, err = db.Conversations(t.Context(), SyncQuery{UID: "a", Since: since + 1, Limit: 9}); err != nil || len(got) != 0 {
		t.Errorf("nothing changed, but %+v, %v", got, err)
	}
	if _, err := db.Advance(t.Context(), []Position{{"b", "u:a:b", 3, 0}}, since+2); err != nil {
		t.Fatal(err)
	}
	if got, err = db.Conversations(t.Context(), SyncQuery{UID: "a", Since: since + 1, Limit: 9}); err != nil || len(got) != 1 || got[0].PeerDelivered != 3 {
		t.Errorf("the peer's position moved, but %+v, %v", got, err)
	}
}

func groups(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	ctx := t.Context()
	if err := db.CreateGroup(ctx, "g:x", []string{"a", "b", "a"}, 1); err != nil {
		t.Fatal(err)
	}
	if err := db.CreateGroup(ctx, "g:x", nil, 1); !errors.Is(err, ErrGroupExists) {
		t.Errorf("create twice: %v", err)
	}
	for i := range 3 {
		if r := mustAppend(t, db, l, s, message(s, "a", "g:x", fmt.Sprint(i), "x"))[0]; r.Seq != int64(i+1) || r.ConvID != "g:x" {
			t.Errorf("%+v", r)
		}
	}
	if n, err := db.AddMembers(ctx, "g:x", []string{"b", "c", "d"}, 2); n != 2 || err != nil {
		t.Errorf("added %d, %v", n, err)
	}
	if c, err := db.Member(ctx, "c", "g:x"); err != nil || c.FloorSeq != 3 || c.ReadSeq != 3 || c.MaxSeq != 3 {
		t.Errorf("who joins late starts at the floor: %+v, %v", c, err)
	}
	if n, err := db.RemoveMembers(ctx, "g:x", []string{"c", "nobody"}, 3); n != 1 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	if _, err := db.Member(ctx, "c", "g:x"); !errors.Is(err, ErrNotMember) {
		t.Errorf("removed member: %v", err)
	}
	if out, err := db.Advance(ctx, []Position{{"c", "g:x", 3, 3}}, 4); err != nil || out[0].Member {
		t.Errorf("removed member's position: %+v, %v", out, err)
	}
	if ms, err := db.Members(ctx, "g:x", "a", 1); err != nil || !slices.Equal(ms, []string{"b"}) {
		t.Errorf("members: %v, %v", ms, err)
	}
	if cs, err := db.Conversations(ctx, SyncQuery{UID: "d", Limit: 5}); err != nil || len(cs) != 1 || cs[0].FloorSeq != 3 || cs[0].Unread != 0 {
		t.Errorf("sync of a late member: %+v, %v", cs, err)
	}
	for op, err := range map[string]error{
		"add":    second(db.AddMembers(ctx, "g:none", []string{"a"}, 1)),
		"remove": second(db.RemoveMembers(ctx, "g:none", []string{"a"}, 1)),
		"list":   second(db.Members(ctx, "g:none", "", 1)),
	} {
		if !errors.Is(err, ErrNoSuchGroup) {
			t.Errorf("%s: %v", op, err)
		}
	}
	mustAppend(t, db, l, s, message(s, "a", "g:x", "late", "x"))
	if n, err := db.AddMembers(ctx, "g:x", []string{"c"}, 5); n != 1 || err != nil {
		t.Errorf("add again: %d, %v", n, err)
	}
	if c, err := db.Member(ctx, "c", "g:x"); err != nil || c.FloorSeq != 4 {
		t.Errorf("who comes back starts anew: %+v, %v", c, err)
	}
}

func second[T any](_ T, err error) error { return err }
