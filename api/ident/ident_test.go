package ident

import (
	"strings"
	"testing"
)

func TestValid(t *testing.T) {
	long := strings.Repeat("a", 128)
	for _, c := range []struct {
		s                string
		uid, group, uuid bool
	}{
		{"alice", true, false, true},
		{"a.b_c@d-E9", true, false, true},
		{"", false, false, false},
		{"a b", false, false, false},
		{"a:b", false, false, true},
		{"{x}", false, false, true},
		{"*", false, false, true},
		{"\r\nFLUSHALL", false, false, false},
		{"ä", false, false, false},
		{"a\x00", false, false, false},
		{long, true, false, false},
		{long + "a", false, false, false},
		{"g:team", false, true, true},
		{"g:", false, false, true},
		{"g:a b", false, false, false},
	} {
		if got := ValidUID(c.s); got != c.uid {
			t.Errorf("ValidUID(%q) = %v", c.s, got)
		}
		if got := ValidGroup([]byte(c.s)); got != c.group {
			t.Errorf("ValidGroup(%q) = %v", c.s, got)
		}
		if got := ValidUUID(c.s); got != c.uuid {
			t.Errorf("ValidUUID(%q) = %v", c.s, got)
		}
	}
}

func TestConversation(t *testing.T) {
	if a, b := Conversation("bob", "alice"), Conversation("alice", "bob"); a != b || a != "u:alice:bob" {
		t.Errorf("Conversation: %q and %q", a, b)
	}
	if c := Conversation("bob", "g:team"); c != "g:team" {
		t.Errorf("Conversation with a group: %q", c)
	}
	if lo, hi, ok := Users("u:alice:bob"); !ok || lo != "alice" || hi != "bob" {
		t.Errorf("Users = %q, %q, %v", lo, hi, ok)
	}
	for _, bad := range []string{"", "g:team", "u:", "u:a", "u:b:a", "u:a:b:c", "x:a:b"} {
		if _, _, ok := Users(bad); ok {
			t.Errorf("Users(%q) is ok", bad)
		}
	}
}
