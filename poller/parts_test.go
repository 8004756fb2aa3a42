package poller

import (
	"strings"
	"testing"
	"unsafe"
)

// TestConnSize keeps the struct that every idle connection pays for within its budget: 160 bytes of the gateway's 600.
func TestConnSize(t *testing.T) {
	if n := unsafe.Sizeof(conn{}); n > 120 {
		t.Errorf("a connection takes %d bytes", n)
	}
}

// TestStageSize does the same for what a connection with TLS pays above crypto/tls: more than 96 bytes would be the next size
// class.
func TestStageSize(t *testing.T) {
	if n := unsafe.Sizeof(stage{}); n > 96 {
		t.Errorf("a stage takes %d bytes", n)
	}
}

func TestConfig(t *testing.T) {
	for field, cfg := range map[string]Config{"Loops": {Loops: -1}, "OutboxBytes": {OutboxBytes: -5}, "Linger": {Linger: -1}, "Reserve": {Reserve: -1}} {
		if err := cfg.check(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := (Config{Reserve: 1 << 40}).clamp(); err == nil {
		t.Error("a reserve above the descriptor limit")
	}
}
