// Package leaks fails a package's tests when goroutines of theirs stay behind. It is apart from testenv, since modules of
// their own use that and do not name goleak.
package leaks

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// endMax bounds how long goroutines may take to end after the last test. goleak by itself gives them less than a second,
// which is little on a busy machine.
const endMax = 30 * time.Second

// Main runs a package's tests, and then waits for their goroutines to end. It is for TestMain, and does not return.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := find(endMax, options...); err != nil {
			fmt.Fprintln(os.Stderr, "the tests have succeeded, but", err)
			code = 1
		}
	}
	os.Exit(code)
}

// find waits until nothing is left, or returns what is left when the time is over.
func find(within time.Duration, options ...goleak.Option) error {
	err := goleak.Find(options...) // looks again and again itself, with pauses between
	for end := time.Now().Add(within); err != nil && time.Now().Before(end); {
		err = goleak.Find(options...)
	}
	return err
}
