package wiring

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// FailpointEnv names a place at which the process kills itself, for tests of crashes: NAME, or NAME@N for the N-th time
// that it is passed.
const FailpointEnv = "SLUICE_FAILPOINT"

// failpoint is what the environment asks for; nil when it asks for nothing.
func failpoint() (func(name string), error) {
	v := os.Getenv(FailpointEnv)
	if v == "" {
		return nil, nil
	}
	name, times, counted := strings.Cut(v, "@")
	n := 1
	if counted {
		var err error
		if n, err = strconv.Atoi(times); err != nil || n < 1 {
			return nil, fmt.Errorf("%s is %q, allowed is NAME or NAME@N", FailpointEnv, v)
		}
	}
	var passed atomic.Int64
	return func(at string) {
		if at == name && passed.Add(1) == int64(n) {
			// As sudden as a power cut: nothing is flushed, no deferred call runs.
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}, nil
}
