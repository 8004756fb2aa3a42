// Package delivery is the downlink half of the reference logic tier. The path of a message:
//
//  1. Begin, before COMMIT: the delivery mark must not pass it.
//  2. Enqueue, after COMMIT: it waits in the lane of its conversation (lane.go).
//  3. Lookup of all receivers of a batch: offline ones are done, they will ask for it.
//  4. Enrolment in the resend table (table.go): from here on some StateServer sees to it, whatever becomes of this one.
//     The mark may pass.
//  5. Push: one call a batch to each gateway (outlet.go). What does not arrive is mended (mend.go).
//  6. The client's ack ends the entry (acks.go), or a resend comes due (scan.go), or the entry ends as exhausted,
//     overflowed, offline or lost; the books (books.go) have a column for each.
//
// (design: protocol 4, guarantees 1, 2, 7 and 10)
package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/stateclient/routes"
	"github.com/sluice-im/sluice/stateserver/store"
)

// ErrStopped is returned once Run is ending: nothing more is taken.
var ErrStopped = errors.New("delivery has stopped")

// Task is one stored message and its receivers.
type Task struct {
	Message store.Message
	// Receivers are uids; the sender's own is among them when his other devices are to get it.
	Receivers []string
	// SenderDevice is the device of Message.FromUID that gets no push: its MESSAGEACK counts as receipt.
	SenderDevice string
	// Settled, when it is not nil, is called once, by a goroutine of the Delivery, when the message is enrolled or was
	// found offline for every receiver; not, when Run ends before. It must not block. It serves those who deliver the rows
	// of another node page by page: while Redis is away such a task is kept beyond the usual bound, so do not have more
	// than some hundreds of them at a time.
	Settled func()
}

// Messages finds stored messages for resends. Ids that are not stored are left out; the order is free.
type Messages interface {
	Load(ctx context.Context, msgIDs []int64) ([]store.Message, error)
}

// Marks keeps the delivery mark of this node.
type Marks interface {
	SaveMark(ctx context.Context, msgID int64) error
}

// Routes is the part of the route table that delivery needs; *routes.Table is one.
type Routes interface {
	// Find answers only with routes whose gateway is alive. A uid that is not in the map is offline, unless there is an
	// error: a *routes.UnknownError names those of whom nothing is known, any other means all of them.
	Find(ctx context.Context, uids []string) (map[string][]routes.Route, error)
	// Remove takes routes out that are unchanged.
	Remove(ctx context.Context, stale []routes.Route) error
}

// Deps are what a Delivery works with.
type Deps struct {
	// Redis is a client as routes.Connect makes it: it keeps to the deadlines of contexts, so that a Redis that hangs costs
	// no more than the timeouts of Config, and repeats nothing by itself, so that the books know what they do not know.
	Redis    redis.UniversalClient
	Routes   Routes
	Messages Messages
	Marks    Marks
	// Gateways is how gateways are called; nil = gRPC as Config.Push says.
	Gateways Gateways
	// Registerer takes the metrics; nil = none.
	Registerer prometheus.Registerer
	// Log is nil for none.
	Log *slog.Logger
	// RedisLost is called when entries of the resend table may have been lost, or messages could not be enrolled for
	// long: the rows of this node above its mark must be passed to Enqueue again. Calls never overlap and are at least
	// recoverEvery apart; ctx ends with Run. nil = nobody wants to know.
	RedisLost func(ctx context.Context)
	// Offline is called for each message before it is settled, with those of its receivers, the sender excepted, who were
	// found offline; nobody for a message that is pushed once. nil = nobody wants to know. It must not block.
	Offline func(msgID int64, offline []string)
	// Gone is called for each receiver who is found offline later, before he confirmed; as Offline otherwise.
	Gone func(uid string, msgID int64)
	// Failpoint is called at named places (the Failpoint constants), for tests of crashes; nil = nothing happens.
	Failpoint func(name string)
}

// Names of the failpoints.
const (
	FailpointFound    = "delivery.found"    // after the lookup, before the enrolment
	FailpointEnrolled = "delivery.enrolled" // after the enrolment, before the push and before the mark moves
	FailpointPushed   = "delivery.pushed"   // after a gateway's answer
)

// Delivery delivers the messages of one StateServer, and resends those of its share of all users.
type Delivery struct {
	// Fixed after New.
	cfg      Config
	deps     Deps
	log      *slog.Logger
	warnings *warnings
	schedule schedule
	table    *table
	marks    *marks
	books    *books
	lanes    []*queue[*job]
	retries  *queue[*job]
	outlets  *outlets
	mends    *queue[mend]
	acks     *queue[*ackCall]
	notices  *queue[Notice]
	late     *queue[lateNotice]
	leases   *leases
	// recover has a value when RedisLost is to be called.
	recover chan struct{}

	// stalled says that messages were given up to a later RedisLost.
	stalled atomic.Bool
	running atomic.Bool
}

const (
	// lanesCount is how many batches may be on their way to Redis at once: enough to hide a slow round trip, few enough
	// that batches gather.
	lanesCount = 8
	// laneTasksMax and laneBytesMax bound one lane's queue: at 20,000 messages/s all lanes hold half a second.
	laneTasksMax = 1024
	laneBytesMax = 8 << 20
	// retriesMax and retriesBytesMax bound what waits for Redis to answer again; beyond it RedisLost brings the rows back.
	retriesMax      = 4096
	retriesBytesMax = 32 << 20
	// mendsMax bounds failed pushes that wait to be looked at; beyond it they keep the schedule they have.
	mendsMax = 1 << 14
	// acksMax bounds callers of Acked that wait; each holds a few words.
	acksMax = 1 << 14
	// noticesMax bounds notices that wait, and those that wait for another try; SYNC_REPLY repeats what is dropped.
	noticesMax      = 1 << 13
	noticesBytesMax = 8 << 20
	// anyCost is the cost bound of queues whose items all weigh 0.
	anyCost = 1
)

// New checks cfg and builds a Delivery; Run makes it work. Enqueue, Acked and Notify may be called before Run, as far as
// the queues reach.
func New(cfg Config, deps Deps) (*Delivery, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	if deps.Redis == nil || deps.Routes == nil || deps.Messages == nil || deps.Marks == nil {
		return nil, errors.New("delivery: Redis, Routes, Messages and Marks are needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Failpoint == nil {
		deps.Failpoint = func(string) {}
	}
	if deps.Offline == nil {
		deps.Offline = func(int64, []string) {}
	}
	if deps.Gone == nil {
		deps.Gone = func(string, int64) {}
	}
	if deps.Gateways == nil {
		deps.Gateways = GRPC(cfg.Push)
	}
	if cfg.Instance == "" {
		cfg.Instance = randomName()
	}
	d := &Delivery{
		cfg: cfg, deps: deps, log: deps.Log, warnings: newWarnings(deps.Log),
		schedule: newSchedule(cfg.Resend),
		table:    newTable(deps.Redis, cfg),
		marks:    newMarks(),
		lanes:    make([]*queue[*job], lanesCount),
		retries:  newQueue[*job](retriesMax, retriesBytesMax),
		mends:    newQueue[mend](mendsMax, anyCost),
		acks:     newQueue[*ackCall](acksMax, anyCost),
		notices:  newQueue[Notice](noticesMax, noticesBytesMax),
		late:     newQueue[lateNotice](noticesMax, noticesBytesMax),
		recover:  make(chan struct{}, 1),
	}
	for i := range d.lanes {
		d.lanes[i] = newQueue[*job](laneTasksMax, laneBytesMax)
	}
	var err error
	d.books, err = newBooks(deps.Registerer, d.markLag, d.queued)
	if err != nil {
		return nil, err
	}
	d.outlets = newOutlets(d)
	d.leases = newLeases(d)
	return d, nil
}

func randomName() string { return fmt.Sprintf("%016x", rand.Uint64()) }

func (d *Delivery) markLag() float64 { return d.marks.lag(time.Now()).Seconds() }

func (d *Delivery) queued() float64 {
	n := d.retries.len()
	for _, l := range d.lanes {
		n += l.len()
	}
	return float64(n)
}

// Begin says, before their COMMIT, that these ids are in use: the mark will not pass them until they are settled. Ids of
// this node must be begun before any higher one is settled, so numbering and Begin belong under one lock. At start, the
// rows above the old mark are begun before the first new id.
func (d *Delivery) Begin(msgIDs []int64) {
	if late := d.marks.begin(msgIDs, time.Now()); late > 0 {
		d.log.Error("ids begun below the delivery mark", "count", late, "mark", d.marks.current())
	}
}

// Abandon says that these ids are known not to be stored.
func (d *Delivery) Abandon(msgIDs []int64) { d.marks.settle(msgIDs...) }

// Mark is the delivery mark: every id of this node at or below it is settled. 0 = nothing was settled yet.
func (d *Delivery) Mark() int64 { return d.marks.current() }

// Enqueue takes stored messages for delivery, in order per conversation; it blocks while the conversation's lane is full.
// After an error the tasks that were not taken stay below the mark's reach: enqueue them again, or leave them to the
// next start.
func (d *Delivery) Enqueue(ctx context.Context, tasks []Task) error {
	for i := range tasks {
		j := newJob(tasks[i])
		if err := d.lanes[laneOf(j.task.Message.ConvID)].put(ctx, j, j.cost()); err != nil {
			return fmt.Errorf("enqueue message %d: %w", j.task.Message.MsgID, err)
		}
	}
	return nil
}

// Run works until ctx ends, then for DrainTimeout at most on what is already here, and returns nil. It may be called once.
func (d *Delivery) Run(ctx context.Context) error {
	if !d.running.CompareAndSwap(false, true) {
		return errors.New("delivery: Run was called before")
	}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()

	// Those that end at once; those that empty their queues first, in the order of a message's way.
	var atOnce, lanes, pushers, menders, ackers sync.WaitGroup
	atOnce.Go(func() { d.runScanner(ctx) })
	atOnce.Go(func() { d.runRetries(ctx) })
	atOnce.Go(func() { d.runMarks(ctx) })
	atOnce.Go(func() { d.runRecovery(ctx) })
	atOnce.Go(func() { d.runLateNotices(ctx) })
	atOnce.Go(func() { d.leases.run(ctx) })
	atOnce.Go(func() { d.leases.runAudit(ctx) })
	for _, l := range d.lanes {
		lanes.Go(func() { d.runLane(work, l) })
	}
	lanes.Go(func() { d.runNotices(work) })
	pushers.Go(func() { d.outlets.run(work) })
	menders.Go(func() { d.runMender(work) })
	for range ackersCount {
		ackers.Go(func() { d.runAcker(work) })
	}

	<-ctx.Done()
	drain := time.AfterFunc(d.cfg.DrainTimeout, stop)
	defer drain.Stop()
	for _, l := range d.lanes {
		l.close()
	}
	d.notices.close()
	d.retries.close()
	lanes.Wait()
	atOnce.Wait()
	d.outlets.close()
	pushers.Wait()
	d.mends.close()
	menders.Wait()
	d.acks.close()
	ackers.Wait()
	stop()
	d.failPendingAcks()
	d.saveMark(context.WithoutCancel(ctx), 0)
	d.leases.leave(context.WithoutCancel(ctx))
	return nil
}
