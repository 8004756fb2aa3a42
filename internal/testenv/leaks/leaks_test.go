package leaks

import (
	"testing"
	"time"
)

// TestLeaksArePatient: a goroutine that ends late is no leak, one that stays is.
func TestLeaksArePatient(t *testing.T) {
	release, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); <-release }()
	if find(time.Millisecond) == nil {
		t.Error("a goroutine that stays is not found")
	}
	time.AfterFunc(2*time.Second, func() { close(release) })
	if err := find(endMax); err != nil {
		t.Error(err)
	}
	<-ended
}
