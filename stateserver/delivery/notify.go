package delivery

import "context"

// noticeBatchMax bounds one lookup of notices.
const noticeBatchMax = 128

// notice is one command for all devices of some users.
type notice struct {
	uids    []string
	command []byte
}

// Notify pushes a command to all devices of uids, best effort: it is not enrolled, nothing is resent, and what finds no
// room is dropped and counted. It never blocks. command must not be changed afterwards.
func (d *Delivery) Notify(uids []string, command []byte) {
	const perUID = 32
	if !d.notices.offer(notice{uids, command}, len(command)+perUID*len(uids)) {
		d.books.notices.Add(float64(len(uids)))
	}
}

func (d *Delivery) runNotices(work context.Context) {
	var batch []notice
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

func (d *Delivery) pushNotices(ctx context.Context, batch []notice) {
	var uids []string
	seen := make(map[string]bool)
	for _, n := range batch {
		for _, uid := range n.uids {
			if !seen[uid] {
				seen[uid] = true
				uids = append(uids, uid)
			}
		}
	}
	f := d.lookup(ctx, uids)
	var parcels []parcel
	for _, n := range batch {
		for _, uid := range n.uids {
			if f.unknown[uid] {
				d.books.notices.Inc()
			}
			for _, r := range f.routes[uid] {
				parcels = append(parcels, parcel{payload: n.command, route: r, kind: kindNotice})
			}
		}
	}
	d.outlets.put(parcels)
}
