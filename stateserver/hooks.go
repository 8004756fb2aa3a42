package stateserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-im/sluice/stateserver/hooks"
	"github.com/sluice-im/sluice/stateserver/store"
)

// hookDropWait bounds forgetting the cursors of hooks that are not configured any more.
const hookDropWait = 5 * time.Second

// hookSet are the hooks of a server, none of which need be there.
type hookSet struct {
	s       *Server
	runs    []func(context.Context)
	targets []hooks.Target
	// findings and late are nil without hooks.offline.
	findings *hooks.Findings
	late     *hooks.Late
}

func (s *Server) newHooks() (*hookSet, error) {
	h := &hookSet{s: s}
	cfg := s.cfg.Hooks
	if cfg.Stored == "" && cfg.Offline == "" {
		return h, nil
	}
	metrics, err := hooks.NewMetrics(s.deps.Registry)
	if err != nil {
		return nil, fmt.Errorf("hooks: %w", err)
	}
	if cfg.Stored != "" {
		to, err := h.dial(cfg.Stored)
		if err != nil {
			return nil, err
		}
		h.walk(hooks.Stored, metrics, hooks.TellStored(to, cfg.Timeout, metrics))
	}
	if cfg.Offline != "" {
		if s.deps.Offline == nil {
			return nil, errors.New("stateserver: Deps.Offline is needed for hooks.offline")
		}
		to, err := h.dial(cfg.Offline)
		if err != nil {
			return nil, err
		}
		h.findings = hooks.NewFindings()
		t := &hooks.OfflineTeller{To: to, Timeout: cfg.Timeout, Metrics: metrics, Findings: h.findings, Receivers: s.hookReceivers, Offline: s.deps.Offline}
		h.late = hooks.NewLate(t, s.store.Load)
		h.walk(hooks.Offline, metrics, t.Tell)
		h.runs = append(h.runs, h.late.Run)
	}
	return h, nil
}

func (h *hookSet) dial(target string) (hooks.Target, error) {
	to, err := hooks.Dial(target, h.s.cfg.Hooks.Token)
	if err == nil {
		h.targets = append(h.targets, to)
	}
	return to, err
}

func (h *hookSet) walk(hook string, m *hooks.Metrics, tell func(context.Context, []store.Message) error) {
	w := hooks.NewWalk(hook, hooks.Deps{Cursors: h.s.store, Messages: h.s.store, Node: h.s.node, Tell: tell, Metrics: m, Log: h.s.log})
	h.runs = append(h.runs, w.Run)
}

// run tells until ctx ends. What is not told by then is told by the next process.
func (h *hookSet) run(ctx context.Context) {
	h.dropUnused(ctx)
	var all sync.WaitGroup
	for _, run := range h.runs {
		all.Go(func() { run(ctx) })
	}
	all.Wait()
	for _, t := range h.targets {
		_ = t.Close() // nothing is on its way any more
	}
}

// dropUnused: a hook that was taken out of the configuration is not told, once it is back, of what was stored meanwhile.
func (h *hookSet) dropUnused(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hookDropWait)
	defer cancel()
	for name, target := range map[string]string{hooks.Stored: h.s.cfg.Hooks.Stored, hooks.Offline: h.s.cfg.Hooks.Offline} {
		if target != "" {
			continue
		}
		if err := h.s.store.DropHook(ctx, name, h.s.node.Lease().Node); err != nil && ctx.Err() == nil {
			h.s.log.Warn("cursor of a hook that is not configured was not dropped", "hook", name, "err", err)
		}
	}
}

// found takes what the delivery found; nil when nobody wants to know.
func (h *hookSet) found() func(msgID int64, offline []string) {
	if h.findings == nil {
		return nil
	}
	return h.findings.Add
}

// gone takes whom the delivery found gone at a resend; nil when nobody wants to know.
func (h *hookSet) gone() func(uid string, msgID int64) {
	if h.late == nil {
		return nil
	}
	return h.late.Gone
}

// hookReceivers are those of whom hooks.offline is told. Members of groups above resend.group_members_max are left out, as
// they are from resends: such a group is read by whoever looks, and each message in it would wake thousands.
func (s *Server) hookReceivers(ctx context.Context, m *store.Message) ([]string, error) {
	to, err := s.entitled(ctx, m)
	if err != nil || len(to) > s.cfg.Resend.GroupMembersMax {
		return nil, err
	}
	return to, nil
}
