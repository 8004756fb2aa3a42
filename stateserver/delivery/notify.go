package delivery

import "context"

// noticeBatchMax bounds one lookup of notices.
const noticeBatchMax = 128

// Notice is one command for all devices of some users but one.
type Notice struct {
	UIDs []string
	// Command must not be changed afterwards.
	Command []byte
	// NotUID and NotDevice are the device that is left out; empty = none.
	NotUID, NotDevice string
}

// Notify pushes a command, best effort: it is not enrolled, nothing is resent, and what finds no room is dropped and
// counted. It never blocks.
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
			if f.unknown[uid] {
				d.books.notices.Inc()
			}
			for _, r := range f.routes[uid] {
				if uid != n.NotUID || r.DeviceID != n.NotDevice {
					parcels = append(parcels, parcel{payload: n.Command, route: r, kind: kindNotice})
				}
			}
		}
	}
	d.outlets.put(parcels)
}
