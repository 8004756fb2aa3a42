// Package sample is a page with two users side by side, each on a WebSocket connection of its own: the JSON subprotocol in
// use, and the states of every message to be seen. It has no build step; `sluice dev` serves it.
package sample

import (
	"embed"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
)

//go:embed index.html sample.css sample.js
var files embed.FS

// User is one side of the page.
type User struct {
	UID string `json:"uid"`
	// Token logs the user in; it goes to whoever can open the page.
	Token string `json:"token"`
}

// Session is what the page is told when it starts.
type Session struct {
	// URL is where it connects, ws://host:port/path.
	URL   string  `json:"url"`
	Users [2]User `json:"users"`
}

// Handler serves the page with the tokens of s. It answers only requests that name this machine (localhost or a loopback
// address): under any other name a foreign page could have led the browser here, to read the tokens.
func Handler(s Session) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /session", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s) // a browser that has gone away needs no answer
	})
	mux.Handle("GET /", http.FileServerFS(files))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.Host) {
			http.Error(w, "this page is for this machine only: open it as localhost or 127.0.0.1", http.StatusMisdirectedRequest)
			return
		}
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; base-uri 'none'; "+
			"form-action 'none'; frame-ancestors 'none'; connect-src 'self' "+s.URL)
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		mux.ServeHTTP(w, r)
	})
}

// loopback reports whether the Host of a request is this machine's own name.
func loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}
