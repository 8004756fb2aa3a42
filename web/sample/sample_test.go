package sample

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func request(t *testing.T, path, host string) *http.Response {
	t.Helper()
	h := Handler(Session{URL: "ws://127.0.0.1:8080/ws", Users: [2]User{{"alice", "token-a"}, {"bob", "token-b"}}})
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestPage(t *testing.T) {
	for path, want := range map[string]string{
		"/":           "sample.js",
		"/sample.js":  "sluice.v1.json",
		"/sample.css": "DELIVERED",
		"/session":    `{"url":"ws://127.0.0.1:8080/ws","users":[{"uid":"alice","token":"token-a"},{"uid":"bob","token":"token-b"}]}`,
	} {
		resp := request(t, path, "127.0.0.1:8088")
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("GET %s: %s %v\n%s", path, resp.Status, err, body)
		}
		if csp := resp.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "connect-src 'self' ws://127.0.0.1:8080/ws") {
			t.Errorf("GET %s: policy %q", path, csp)
		}
	}
	if resp := request(t, "/sample.go", "127.0.0.1:8088"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("GET /sample.go: %s", resp.Status)
	}
}

// A name that somebody else's DNS points at this machine must not open the page: its tokens would be theirs.
func TestHost(t *testing.T) {
	for host, want := range map[string]int{
		"127.0.0.1:8088":         http.StatusOK,
		"127.0.0.1":              http.StatusOK,
		"[::1]:8088":             http.StatusOK,
		"localhost:1234":         http.StatusOK,
		"localhost":              http.StatusOK,
		"evil.example:8088":      http.StatusMisdirectedRequest,
		"localhost.evil.example": http.StatusMisdirectedRequest,
		"127.0.0.1.evil.example": http.StatusMisdirectedRequest,
		"192.0.2.1:8088":         http.StatusMisdirectedRequest,
		"":                       http.StatusMisdirectedRequest,
	} {
		if resp := request(t, "/session", host); resp.StatusCode != want {
			t.Errorf("Host %q: %s, want %d", host, resp.Status, want)
		}
	}
}
