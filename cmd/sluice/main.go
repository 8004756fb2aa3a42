// Sluice is the tool around the gateway: a whole system in one process (dev), a terminal client (chat), tokens, and the
// benchmarks.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sluice-im/sluice/cmd/internal/program"
)

type commands struct {
	Dev        devCmd           `cmd:"" help:"Run everything in one process, on embedded parts."`
	Chat       chatCmd          `cmd:"" help:"Terminal client: each line is a message, its states are shown."`
	Group      groupCmd         `cmd:"" help:"Make groups and change their members, at a StateServer."`
	Token      tokenCmd         `cmd:"" help:"Sign a token."`
	Bench      benchCmd         `cmd:"" help:"Measure the real programs on this machine."`
	BenchChild benchChildCmd    `cmd:"" hidden:"" help:"A process under measurement; started by bench."`
	Version    kong.VersionFlag `help:"Print the version and exit."`
}

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	const name = "sluice"
	var c commands
	ctx, stop := program.Signals(context.Background())
	defer stop()
	parser, err := kong.New(&c, kong.Name(name), kong.Description("Edge gateway for messaging: development system, terminal client and benchmarks."),
		kong.UsageOnError(), kong.Vars{"version": program.Version()}, kong.BindTo(ctx, (*context.Context)(nil)))
	if err != nil {
		return program.Exit(os.Stderr, name, err)
	}
	k, err := parser.Parse(args)
	if err != nil {
		return program.Exit(os.Stderr, name, fmt.Errorf("%w: %w", program.ErrUsage, err))
	}
	return program.Exit(os.Stderr, name, k.Run())
}
