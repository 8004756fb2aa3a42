package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"
)

// profile writes a CPU profile of gw to o.Profile while during runs, which is told for how long it should. It does nothing
// when no profile is asked for.
func profile(ctx context.Context, o Options, gw *Process, during func(d time.Duration) error) error {
	if o.Profile == "" {
		return nil
	}
	type page struct {
		text string
		err  error
	}
	got := make(chan page, 1)
	go func() {
		text, err := fetch(ctx, "http://"+adminOf(gw)+"/debug/pprof/profile?seconds="+strconv.Itoa(o.Seconds), time.Duration(o.Seconds)*time.Second+fetchMax)
		got <- page{text, err}
	}()
	err := during(time.Duration(o.Seconds) * time.Second)
	p := <-got
	if err != nil {
		return err
	}
	if p.err != nil {
		return fmt.Errorf("profile: %w", p.err)
	}
	return os.WriteFile(o.Profile, []byte(p.text), 0o644)
}
