package routes

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-im/sluice/api/ident"
)

const (
	// valueFields is how many fields version 1 has, which is what the scripts write. A later version may only add fields
	// at the end, so that gateways and StateServers of two versions can share a table: what is read is any version from
	// 1 on.
	valueFields = 9
	// textBytesMax bounds each free text of a route before escaping: platform and session id come from clients, and a
	// user's 16 routes are read at every lookup.
	textBytesMax = 256
)

// ErrInvalid means that a claim or restore was refused before anything was sent: an id that is not of the alphabet
// (package ident), a text of more than 256 bytes, or no incarnation. There is nothing to release.
var ErrInvalid = errors.New("invalid route")

// errValue is a field that this version cannot read. It is passed over, never deleted for that.
var errValue = errors.New("unreadable route value")

// A value is  version|epoch|conn_id|incarnation|generation|addr|platform|session_id|since in ms.  Its texts are escaped,
// so that a bar is always a separator; that keeps the value readable in redis-cli and parseable by the scripts.
var (
	escaper   = strings.NewReplacer("%", "%25", "|", "%7C", "\r", "%0D", "\n", "%0A", "\x00", "%00")
	unescaper = strings.NewReplacer("%25", "%", "%7C", "|", "%0D", "\r", "%0A", "\n", "%00", "\x00")
)

// routeKey is the hash of a user's routes. The braces are a hash tag: all keys of a user share a slot of a Cluster. A
// valid uid has no brace of its own.
func routeKey(uid string) string { return "route:uid:{" + uid + "}" }

// leaseKey is the lease of one run of a gateway.
func leaseKey(incarnation string) string { return "gateway:" + incarnation }

// leasesKey is the index of leases: it spares the StateServers a SCAN. It lives in another slot than the leases
// themselves and is only ever a hint that a lease stands until its score.
const leasesKey = "gateways"

// owner is the part of a value that says whose route it is.
func owner(r *Route) string {
	return strconv.FormatUint(r.ConnID, 10) + "|" + escaper.Replace(r.Incarnation)
}

// tail is what follows the owner.
func tail(r *Route) string {
	b := make([]byte, 0, 96)
	b = strconv.AppendUint(b, r.Generation, 10)
	for _, s := range [...]string{r.Addr, r.Platform, r.SessionID} {
		b = append(append(b, '|'), escaper.Replace(s)...)
	}
	return string(strconv.AppendInt(append(b, '|'), r.Since.UnixMilli(), 10))
}

func parseValue(uid, device, value string) (Route, error) {
	f := strings.SplitN(value, "|", valueFields+1)
	if len(f) < valueFields {
		return Route{}, fmt.Errorf("%w: %d fields", errValue, len(f))
	}
	version, err := strconv.ParseUint(f[0], 10, 16)
	if err != nil || version < 1 {
		return Route{}, fmt.Errorf("%w: version", errValue)
	}
	epoch, errEpoch := strconv.ParseInt(f[1], 10, 64)
	conn, errConn := strconv.ParseUint(f[2], 10, 64)
	generation, errGen := strconv.ParseUint(f[4], 10, 64)
	since, errSince := strconv.ParseInt(f[8], 10, 64)
	if err := errors.Join(errEpoch, errConn, errGen, errSince); err != nil {
		return Route{}, fmt.Errorf("%w: %w", errValue, err)
	}
	return Route{
		UID: uid, DeviceID: device, ConnID: conn, Epoch: epoch, Generation: generation,
		Incarnation: unescaper.Replace(f[3]), Addr: unescaper.Replace(f[5]),
		Platform: unescaper.Replace(f[6]), SessionID: unescaper.Replace(f[7]),
		Since: time.UnixMilli(since),
	}, nil
}

// check refuses what must not reach a key or a value.
func check(r *Route) error {
	switch {
	case !ident.ValidUID(r.UID):
		return fmt.Errorf("%w: uid %.140q", ErrInvalid, r.UID)
	case !ident.ValidUID(r.DeviceID):
		return fmt.Errorf("%w: device %.140q", ErrInvalid, r.DeviceID)
	case r.Incarnation == "" || len(r.Incarnation) > textBytesMax:
		return fmt.Errorf("%w: incarnation %.140q", ErrInvalid, r.Incarnation)
	case len(r.Addr) > textBytesMax || len(r.Platform) > textBytesMax || len(r.SessionID) > textBytesMax:
		return fmt.Errorf("%w: a text of more than %d bytes", ErrInvalid, textBytesMax)
	}
	return nil
}
