// Package wiring puts the packages together: the programs and `sluice dev` run the same servers.
package wiring

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/grpc"

	"github.com/sluice-im/sluice/api/vtcodec"
	"github.com/sluice-im/sluice/stateclient/routes"
	"github.com/sluice-im/sluice/stateserver"
	"github.com/sluice-im/sluice/stateserver/delivery"
	"github.com/sluice-im/sluice/stateserver/store"
)

// Validate names the first key whose value cannot be used, as cfg.Validate does, the delivery's keys included: the two
// packages do not know each other.
func Validate(cfg stateserver.Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := deliveryConfig(cfg).Validate(); err != nil {
		return err
	}
	_, err := failpoint()
	return err
}

// RunStateServer runs a StateServer until ctx ends; ready is called once it listens.
func RunStateServer(ctx context.Context, cfg stateserver.Config, log *slog.Logger, ready func(*stateserver.Server)) error {
	rdb, err := routes.Connect(routes.RedisOptions{Addrs: cfg.Redis.Addrs, Mode: routes.Mode(cfg.Redis.Mode), MasterName: cfg.Redis.Master,
		Username: cfg.Redis.Username, Password: cfg.Redis.Password, DB: cfg.Redis.DB})
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	defer func() { _ = rdb.Close() }()
	live := routes.NewLive(rdb, routes.LiveOptions{Log: log})
	table := routes.New(rdb, routes.Options{LookupTimeout: cfg.Routes.LookupTimeout, Live: live})
	fail, err := failpoint()
	if err != nil {
		return err
	}
	s, err := stateserver.New(ctx, cfg, stateserver.Deps{
		Redis: rdb, Log: log, Failpoint: fail, Offline: offline(table),
		ServerOptions: []grpc.ServerOption{grpc.ForceServerCodecV2(vtcodec.Codec{})},
		Delivery: func(p stateserver.DeliveryParts) (stateserver.Delivery, error) {
			d, err := delivery.New(deliveryConfig(cfg), delivery.Deps{
				Redis: rdb, Routes: table, Messages: loader(p.Load), Marks: marker(p.SaveMark), Registerer: p.Registerer,
				Log: p.Log, RedisLost: p.Redeliver, Offline: p.Offline, Gone: p.Gone, Failpoint: p.Failpoint,
			})
			if err != nil {
				return nil, err
			}
			return downlink{d}, nil
		},
	})
	if err != nil {
		return err
	}
	liveCtx, stopLive := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = live.Run(liveCtx) // returns only when its context ends
	}()
	defer func() { stopLive(); <-ended }()
	ready(s)
	return s.Run(ctx)
}

func deliveryConfig(cfg stateserver.Config) delivery.Config {
	c := delivery.Default()
	c.Resend = delivery.Resend(cfg.Resend)
	c.Push.Timeout, c.Push.Token = cfg.Push.Timeout, cfg.Push.Token
	c.LookupTimeout = cfg.Routes.LookupTimeout
	return c
}

// offline says who of some users has no route.
func offline(table *routes.Table) func(context.Context, []string) ([]string, error) {
	return func(ctx context.Context, uids []string) ([]string, error) {
		found, err := table.Find(ctx, uids)
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return len(found[uid]) > 0 }), nil
	}
}

type loader func(ctx context.Context, msgIDs []int64) ([]store.Message, error)

func (l loader) Load(ctx context.Context, msgIDs []int64) ([]store.Message, error) {
	return l(ctx, msgIDs)
}

type marker func(ctx context.Context, msgID int64) error

func (m marker) SaveMark(ctx context.Context, msgID int64) error { return m(ctx, msgID) }

// downlink is a Delivery as the StateServer knows it.
type downlink struct{ *delivery.Delivery }

// Notify passes a notice on.
func (d downlink) Notify(n stateserver.Notice) { d.Delivery.Notify(delivery.Notice(n)) }

// Enqueue passes tasks on; the two packages do not know each other's types.
func (d downlink) Enqueue(ctx context.Context, tasks []stateserver.Task) error {
	out := make([]delivery.Task, len(tasks))
	for i, t := range tasks {
		out[i] = delivery.Task(t)
	}
	return d.Delivery.Enqueue(ctx, out)
}
