package reason

import "testing"

func TestTable(t *testing.T) {
	names := map[string]bool{}
	for _, r := range All() {
		e := table[r]
		if e.name == "" || names[e.name] {
			t.Errorf("reason %d: name %q is empty or stands twice", r, e.name)
		}
		names[e.name] = true
		if c := e.code; c != 0 && (c < 1000 || c > 1014 && c < 4000 || c > 4999) {
			t.Errorf("%s: code %d is outside 1000-1014 and 4000-4999", e.name, c)
		}
		if got, ok := Parse(e.name); !ok || got != r {
			t.Errorf("Parse(%q) = %v, %v", e.name, got, ok)
		}
	}
	if _, ok := Parse("no such reason"); ok {
		t.Error("Parse takes a name that is not of the list")
	}
	if s := Reason(255).String(); s != "unknown" {
		t.Errorf("String of an unknown reason: %q", s)
	}
}

func TestMayReconnect(t *testing.T) {
	for code, want := range map[uint16]bool{1000: true, 1012: true, 4499: true, 4500: false, 4999: false} {
		if got := MayReconnect(code); got != want {
			t.Errorf("MayReconnect(%d) = %v", code, got)
		}
	}
}
