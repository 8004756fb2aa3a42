package delivery

import (
	"context"
	"time"
)

const (
	// noticeBatchMax bounds one lookup of notices.
	noticeBatchMax = 128
	// noticeAgainEvery is the pause before a notice is tried again whose receivers were unknown or could not be reached.
	noticeAgainEvery = time.Second
	// noticeTriesMax is when it is given up: most outages end within half a minute, and whoever connects again after that
	// asks with SYNC.
	noticeTriesMax = 30
)

// Notice is one command for all devices of some users but one.
type Notice struct {
	UIDs []string
	// Command must not be changed afterwards.
	Command []byte
	// NotUID and NotDevice are the device that is left out; empty = none.
	NotUID, NotDevice string
}

// Notify pushes a command, best effort: it is not enrolled and nobody confirms it. While Redis or a gateway does not
// answer it is tried again, since no later notice may follow; what finds no room is dropped and counted. It never blocks.
func (d *Delivery) Notify(n Notice) {
	const perUID = 32
	if !d.notices.offer(n, len(n.Command)+perUID*len(n.UIDs)) {
		d.books.notices.Add(float64(len(n.UIDs)))
	}
}

func (d *Delivery) runNotices(work context.Context) {
	var batch []Notice
	for work.Err() == nil {
		var open bool
		batch, open = d.notices.poll(batch[:0], noticeBatchMax, batchBytesMax)
		if len(batch) > 0 {
			d.pushNotices(work, batch)
			clear(batch)
			continue
		}
		if !open {
			return
		}
		select {
		case <-d.notices.ready:
		case <-work.Done():
		}
	}
}

func (d *Delivery) pushNotices(ctx context.Context, batch []Notice) {
	var uids []string
	seen := make(map[string]bool)
	for _, n := range batch {
		for _, uid := range n.UIDs {
			if !seen[uid] {
				seen[uid] = true
				uids = append(uids, uid)
			}
		}
	}
	f := d.lookup(ctx, uids)
	var parcels []parcel
	for _, n := range batch {
		for _, uid := range n.UIDs {
			l := lateNotice{uid: uid, command: n.Command}
			if uid == n.NotUID {
				l.notDevice = n.NotDevice
			}
			parcels = d.appendNotice(parcels, l, f)
		}
	}
	d.outlets.put(parcels)
}

// lateNotice is a notice for one user that is on its way, perhaps once more.
type lateNotice struct {
	uid     string
	command []byte
	// device is the only one that it is for; empty = all but notDevice.
	device, notDevice string
	tries             uint8
}

// appendNotice makes the parcels of a notice; of a user of whom nothing is known it is kept for later.
func (d *Delivery) appendNotice(parcels []parcel, n lateNotice, f found) []parcel {
	if f.unknown[n.uid] {
		d.noticeLater(n)
		return parcels
	}
	for _, r := range f.routes[n.uid] {
		if n.device == r.DeviceID || n.device == "" && (n.notDevice == "" || n.notDevice != r.DeviceID) {
			parcels = append(parcels, parcel{payload: n.command, route: r, kind: kindNotice, tries: n.tries})
		}
	}
	return parcels
}

// notice is the notice that a parcel of kindNotice carries, for its device.
func (p parcel) notice() lateNotice {
	return lateNotice{uid: p.route.UID, device: p.route.DeviceID, command: p.payload, tries: p.tries}
}

// noticeLater keeps a notice that did not arrive. It never blocks.
func (d *Delivery) noticeLater(n lateNotice) {
	n.tries++
	if n.tries > noticeTriesMax || !d.late.offer(n, len(n.command)) {
		d.books.notices.Inc()
	}
}

// runLateNotices tries what has gathered once in noticeAgainEvery, so that an outage costs one look a batch and second.
func (d *Delivery) runLateNotices(work context.Context) {
	tick := time.NewTicker(noticeAgainEvery)
	defer tick.Stop()
	for {
		select {
		case <-work.Done():
			return
		case <-tick.C:
		}
		for left := d.late.len(); left > 0 && work.Err() == nil; {
			batch, _ := d.late.poll(nil, min(left, noticeBatchMax), batchBytesMax)
			left -= len(batch)
			if len(batch) == 0 || !d.pushLate(work, batch) {
				break // Redis is away: the rest waits for the next tick
			}
		}
	}
}

// pushLate reports whether anything was found out.
func (d *Delivery) pushLate(ctx context.Context, batch []lateNotice) bool {
	uids := make([]string, 0, len(batch))
	seen := make(map[string]bool, len(batch))
	for _, n := range batch {
		if !seen[n.uid] {
			seen[n.uid] = true
			uids = append(uids, n.uid)
		}
	}
	f := d.lookup(ctx, uids)
	var parcels []parcel
	for _, n := range batch {
		parcels = d.appendNotice(parcels, n, f)
	}
	d.outlets.put(parcels)
	return len(f.unknown) < len(uids)
}
