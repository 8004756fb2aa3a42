// wsconf: an independent RFC 6455 / RFC 7692 server checker over raw sockets, standard library only.
// The target must echo every data message. Stricter than Autobahn: exact close codes are demanded,
// and things Autobahn does not look at (minimal lengths, handshake strictness, size limits) are checked.
//
//	wsconf [-run regexp] [-v] [-strict] [-max bytes] [-frames n] [-flate] [-wait time] ws://127.0.0.1:PORT/PATH
//
// wss:// does the same through TLS, and believes any certificate.
//
// A case ends OK (as the RFC and a careful gateway demand), LENIENT (allowed or harmless, but not the
// best: e.g. TCP dropped without a close frame) or FAIL. Exit code 1 on any FAIL; with -strict on any LENIENT too.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

var (
	runRe   = flag.String("run", "", "only cases whose id matches")
	verbose = flag.Bool("v", false, "print every case")
	maxMsg  = flag.Int64("max", 0, "the target's message limit in bytes (enables the limit cases)")
	// Not known, a case sends a million frames, and a server that closes with RST behind them is LENIENT.
	maxFrames = flag.Int("frames", 0, "the target's limit of frames in one message, if it is known")
	doFlate   = flag.Bool("flate", false, "the target negotiates permessage-deflate")
	par       = flag.Int("p", 8, "cases in parallel")
	strict    = flag.Bool("strict", false, "LENIENT counts as FAIL for the exit code")
	target    *url.URL
	wait      time.Duration // for an answer; a busy machine needs more
)

type conn struct {
	net.Conn
	r    *bufio.Reader
	resp string // response head
	dict []byte // server's LZ77 window when it keeps its context
	ext  string
}

type result int

const (
	ok result = iota
	lenient
	fail
)

type outcome struct {
	r   result
	why string
}

func bad(f string, a ...any) outcome  { return outcome{fail, fmt.Sprintf(f, a...)} }
func soft(f string, a ...any) outcome { return outcome{lenient, fmt.Sprintf(f, a...)} }

var good = outcome{}

func main() {
	flag.DurationVar(&wait, "wait", 2*time.Second, "how long an answer may take")
	flag.Parse()
	u, err := url.Parse(flag.Arg(0))
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" {
		fmt.Fprintln(os.Stderr, "usage: wsconf [-run re] [-v] [-strict] [-max bytes] [-frames n] [-flate] [-wait time] ws[s]://127.0.0.1:PORT/PATH")
		os.Exit(2)
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		fmt.Fprintln(os.Stderr, "loopback targets only")
		os.Exit(2)
	}
	target = u
	build()
	re := regexp.MustCompile(*runRe)
	sem := make(chan bool, *par)
	var mu sync.Mutex
	var wg sync.WaitGroup
	res := map[string]outcome{}
	var ids []string
	t0 := time.Now()
	for _, t := range cases {
		if !re.MatchString(t.id) {
			continue
		}
		ids = append(ids, t.id)
		sem <- true
		wg.Go(func() {
			defer func() { <-sem }()
			var o outcome
			if t.hs {
				o = t.run(nil)
			} else if c, err := open(t.ext); err != nil {
				o = bad("%v", err)
				if strings.HasPrefix(t.id, "Z.bad-offer") {
					o = soft("refuses the handshake instead of declining the extension: %v", err)
				}
			} else {
				o = t.run(c)
				c.done()
			}
			mu.Lock()
			res[t.id] = o
			mu.Unlock()
		})
	}
	wg.Wait()
	var n [3]int
	for _, id := range ids {
		o := res[id]
		n[o.r]++
		if o.r != ok || *verbose {
			fmt.Printf("%-8s%-22s %s\n", []string{"ok", "LENIENT", "FAIL"}[o.r], id, o.why)
		}
	}
	fmt.Printf("%s: %d cases, OK %d, LENIENT %d, FAIL %d in %v\n", u, len(ids), n[0], n[1], n[2], time.Since(t0).Round(time.Millisecond))
	if n[2] > 0 || *strict && n[1] > 0 {
		os.Exit(1)
	}
}
