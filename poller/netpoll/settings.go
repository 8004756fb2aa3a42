package netpoll

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	cloudwego "github.com/cloudwego/netpoll"
)

// inputBytes is the input buffer that netpoll holds for each connection, and with it the most that it reads at once. The
// smallest that it allows without changing its variables: idle connections are many, and large frames rare.
const inputBytes = 4 << 10

// settled makes netpoll's settings once. They are variables of the process that its pollers read without a lock from the
// first connection on, so this has to be state of the package.
var settled sync.Once

// configure makes netpoll's settings, unless an earlier engine of the process has; log then is that engine's.
func configure(log *slog.Logger) (err error) {
	settled.Do(func() {
		err = cloudwego.Configure(cloudwego.Config{BufferSize: inputBytes, Runner: inPlace, LoggerOutput: diagnostics{log}})
	})
	if err != nil {
		return fmt.Errorf("netpoll: settings: %w", err)
	}
	return nil
}

// inPlace runs OnRequest on the poller that has read, which is safe as long as it does not wait and nobody calls Close on
// a registered connection: netpoll would then free the connection inside its own event and wait for its end for ever.
// So connections are only ever ended by shutting down the socket (closing.go).
func inPlace(_ context.Context, f func()) { f() }

// diagnostics passes what netpoll prints to the log. It is about sockets that peers have reset, hence debug.
type diagnostics struct{ log *slog.Logger }

// Write implements io.Writer.
func (d diagnostics) Write(p []byte) (int, error) {
	d.log.Debug("netpoll: " + strings.TrimSpace(string(p)))
	return len(p), nil
}
