// Package program is what the servers' main functions share: flags, configuration, signals, the logger and the exit codes
// (0 well, 1 failed while running, 2 usage or configuration).
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/cmd/internal/conf"
)

// The exit codes of every program of the project.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// ErrUsage marks errors of usage or configuration: the program exits with 2 and has started nothing.
var ErrUsage = errors.New("usage")

// Flags are the flags of a server.
type Flags struct {
	Config  string           `help:"YAML configuration file." placeholder:"FILE" type:"path"`
	Set     []string         `help:"Set one key, such as limits.connections=1000; may be repeated. Wins over file and environment." placeholder:"KEY=VALUE" sep:"none"`
	Check   bool             `help:"Validate the configuration and exit."`
	Version kong.VersionFlag `help:"Print the version and exit."`
}

// Sources is where the configuration comes from.
func (f *Flags) Sources() conf.Sources {
	return conf.Sources{File: f.Config, Environ: os.Environ(), Sets: f.Set}
}

// Validator is a configuration that can check itself.
type Validator interface{ Validate() error }

// Load fills into and validates it; every error is one of usage.
func Load(into Validator, src conf.Sources) error {
	if err := conf.Load(into, src); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if err := into.Validate(); err != nil {
		return fmt.Errorf("%w: config: %w", ErrUsage, err)
	}
	return nil
}

// Server runs a server program until SIGTERM or SIGINT; a second signal ends it at once.
func Server(args []string, name, description string, run func(ctx context.Context, f *Flags) error) int {
	var f Flags
	parser, err := kong.New(&f, kong.Name(name), kong.Description(description), kong.UsageOnError(), kong.Vars{"version": Version()})
	if err != nil {
		return Exit(os.Stderr, name, err)
	}
	if _, err := parser.Parse(args); err != nil {
		return Exit(os.Stderr, name, fmt.Errorf("%w: %w", ErrUsage, err))
	}
	ctx, stop := Signals(context.Background())
	defer stop()
	return Exit(os.Stderr, name, run(ctx, &f))
}

// Signals returns a context that ends with the first SIGTERM or SIGINT; the second then has its default effect.
func Signals(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(parent, syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// OnHangup calls reload after each SIGHUP, until ctx ends or stop is called, which waits for a reload that runs. Signals
// that come while one runs count as one.
func OnHangup(ctx context.Context, reload func()) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-hangups:
				reload()
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		cancel()
		<-done
	}
}

// Exit prints an error as one line and says which exit code it means.
func Exit(w io.Writer, name string, err error) int {
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrUsage):
		_, _ = fmt.Fprintf(w, "%s: %v\n", name, err)
		return ExitUsage
	default:
		_, _ = fmt.Fprintf(w, "%s: %v\n", name, err)
		return ExitFailed
	}
}

// Logger writes to w in format json or text, from level on. What go-redis has to say of its connections goes there too, as
// debug lines: it has one logger a process, and writes to standard error otherwise.
func Logger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("%w: config: log.level: %s is not allowed here; allowed: debug, info, warn, error", ErrUsage, level)
	}
	opts := &slog.HandlerOptions{Level: l}
	var log *slog.Logger
	switch format {
	case "json":
		log = slog.New(slog.NewJSONHandler(w, opts))
	case "text":
		log = slog.New(slog.NewTextHandler(w, opts))
	default:
		return nil, fmt.Errorf("%w: config: log.format: %s is not allowed here; allowed: json, text", ErrUsage, format)
	}
	redis.SetLogger(redisLog{log})
	return log, nil
}

type redisLog struct{ log *slog.Logger }

// Printf is what go-redis calls.
func (r redisLog) Printf(ctx context.Context, format string, args ...any) {
	r.log.DebugContext(ctx, fmt.Sprintf(format, args...), "library", "go-redis")
}

// Version is the version that the Go command stamped into the binary.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// Sources is a configuration from the environment and --set flags alone.
func Sources(sets []string) conf.Sources { return conf.Sources{Environ: os.Environ(), Sets: sets} }
