// Gateway runs the edge gateway.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sluice-im/sluice/cmd/internal/program"
	"github.com/sluice-im/sluice/gateway"
)

func main() {
	os.Exit(program.Server(os.Args[1:], "gateway", "The edge gateway of Sluice.", run))
}

func run(ctx context.Context, f *program.Flags) error {
	cfg := gateway.Default()
	if err := program.Load(&cfg, f.Sources()); err != nil {
		return err
	}
	log, err := program.Logger(os.Stderr, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	g, err := gateway.New(cfg, gateway.Deps{Log: log, Build: program.Version()})
	if err != nil { // a key or a certificate that cannot be used: nothing has been started
		return fmt.Errorf("%w: config: %w", program.ErrUsage, err)
	}
	if f.Check {
		return nil
	}
	stop := program.OnHangup(ctx, func() {
		if err := g.Reload(); err != nil {
			log.Error("reload: what was in use before stays", "error", err)
			return
		}
		log.Info("reloaded: the certificates; everything else needs a restart")
	})
	defer stop()
	return g.Run(ctx)
}
