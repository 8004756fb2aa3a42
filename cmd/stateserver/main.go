// Stateserver runs the reference logic tier.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sluice-im/sluice/cmd/internal/program"
	"github.com/sluice-im/sluice/cmd/internal/wiring"
	"github.com/sluice-im/sluice/stateserver"
)

func main() {
	os.Exit(program.Server(os.Args[1:], "stateserver", "The reference logic tier of Sluice.", run))
}

func run(ctx context.Context, f *program.Flags) error {
	cfg := stateserver.Default()
	if err := program.Load(&cfg, f.Sources()); err != nil {
		return err
	}
	if err := wiring.Validate(cfg); err != nil {
		return fmt.Errorf("%w: config: %w", program.ErrUsage, err)
	}
	log, err := program.Logger(os.Stderr, cfg.Log.Level, cfg.Log.Format)
	if err != nil || f.Check {
		return err
	}
	return wiring.RunStateServer(ctx, cfg, log, func(s *stateserver.Server) {
		log.Info("stateserver: ready", "grpc", s.Addr(), "admin", s.AdminAddr(), "version", program.Version())
	})
}
