package gateway

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-im/sluice/api/ident"
)

var tokenNow = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// publicKeyFile writes the public half of a key.
func publicKeyFile(t testing.TB, public any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func writeFile(t testing.TB, b []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func sign(t testing.TB, method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	s, err := jwt.NewWithClaims(method, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const tokenSecret = "a secret of thirty-two characters"

func TestTokens(t *testing.T) {
	hs := func(claims jwt.MapClaims) string { return sign(t, jwt.SigningMethodHS256, []byte(tokenSecret), claims) }
	at := func(d time.Duration) int64 { return tokenNow.Add(d).Unix() }
	good := func(change func(c jwt.MapClaims)) jwt.MapClaims {
		c := jwt.MapClaims{"sub": "alice", "exp": at(time.Hour), "iss": "issuer", "aud": "chat"}
		if change != nil {
			change(c)
		}
		return c
	}
	auth, err := newAuthenticator(Auth{Mode: authJWT, JWT: JWT{Secret: tokenSecret, Issuer: "issuer", Audience: "chat", UIDClaim: "sub"}},
		func() time.Time { return tokenNow })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, token, want string
	}{
		{"good", hs(good(nil)), "alice/"},
		{"a number as uid", hs(good(func(c jwt.MapClaims) { c["sub"] = 1002 })), "1002/"},
		{"a broken number as uid", hs(good(func(c jwt.MapClaims) { c["sub"] = 1.5 })), "bad_token"},
		{"for one device", hs(good(func(c jwt.MapClaims) { c["device_id"] = "phone" })), "alice/phone"},
		{"one of several audiences", hs(good(func(c jwt.MapClaims) { c["aud"] = []string{"mail", "chat"} })), "alice/"},
		{"no end", hs(good(func(c jwt.MapClaims) { delete(c, "exp") })), "alice/"},
		{"expired within the skew", hs(good(func(c jwt.MapClaims) { c["exp"] = at(-29 * time.Second) })), "alice/"},
		{"expired", hs(good(func(c jwt.MapClaims) { c["exp"] = at(-31 * time.Second) })), "token_expired"},
		{"not yet, within the skew", hs(good(func(c jwt.MapClaims) { c["nbf"] = at(29 * time.Second) })), "alice/"},
		{"not yet", hs(good(func(c jwt.MapClaims) { c["nbf"] = at(31 * time.Second) })), "bad_token"},
		{"another issuer", hs(good(func(c jwt.MapClaims) { c["iss"] = "nobody" })), "bad_token"},
		{"another audience", hs(good(func(c jwt.MapClaims) { c["aud"] = "mail" })), "bad_token"},
		{"no audience", hs(good(func(c jwt.MapClaims) { delete(c, "aud") })), "bad_token"},
		{"no uid", hs(good(func(c jwt.MapClaims) { delete(c, "sub") })), "bad_token"},
		{"a uid that is none", hs(good(func(c jwt.MapClaims) { c["sub"] = "a:b" })), "bad_token"},
		{"another secret", sign(t, jwt.SigningMethodHS256, []byte("something else"), good(nil)), "bad_token"},
		{"another algorithm of the secret", sign(t, jwt.SigningMethodHS512, []byte(tokenSecret), good(nil)), "bad_token"},
		{"an extension that must be understood", critical(t, good(nil)), "bad_token"},
		{"no algorithm", sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, good(nil)), "bad_token"},
		{"no token", "", "bad_token"},
		{"garbage", "a.b.c", "bad_token"},
		{"huge", strings.Repeat("a", 9000), "bad_token"},
	} {
		who, err := auth.authenticate(c.token)
		got := who.uid + "/" + who.device
		var refused *refusedToken
		if errors.As(err, &refused) {
			got = refused.reason.String()
			if strings.Contains(refused.detail, "alice") {
				t.Errorf("%s: the detail quotes the token: %s", c.name, refused.detail)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// critical is a good token whose header names an extension as critical.
func critical(t *testing.T, c jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, c)
	token.Header["crit"], token.Header["b64"] = []string{"b64"}, false
	text, err := token.SignedString([]byte(tokenSecret))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPublicKeys: the key decides the algorithm, and a public key is never taken for a secret.
func TestPublicKeys(t *testing.T) {
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	es, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	es384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	edPublic, ed, _ := ed25519.GenerateKey(rand.Reader)
	now := func() time.Time { return tokenNow }
	claims := jwt.MapClaims{"user": 1002, "exp": tokenNow.Add(time.Hour).Unix()}
	for _, c := range []struct {
		method jwt.SigningMethod
		key    any
		public any
	}{{jwt.SigningMethodRS256, rs, &rs.PublicKey}, {jwt.SigningMethodES256, es, &es.PublicKey}, {jwt.SigningMethodEdDSA, ed, edPublic}} {
		file := publicKeyFile(t, c.public)
		auth, err := newAuthenticator(Auth{Mode: authJWT, JWT: JWT{PublicKeyFile: file, UIDClaim: "user"}}, now)
		if err != nil {
			t.Fatalf("%s: %v", c.method.Alg(), err)
		}
		if who, err := auth.authenticate(sign(t, c.method, c.key, claims)); err != nil || who.uid != "1002" {
			t.Errorf("%s: %v %v", c.method.Alg(), who, err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := auth.authenticate(sign(t, jwt.SigningMethodHS256, text, claims)); err == nil {
			t.Errorf("%s: the public key was taken for a secret", c.method.Alg())
		}
	}
	for name, file := range map[string]string{"a small RSA key": publicKeyFile(t, &small.PublicKey),
		"another curve": publicKeyFile(t, &es384.PublicKey), "no key": writeFile(t, []byte("hello")), "no file": "/nowhere/key.pem"} {
		if _, err := newAuthenticator(Auth{Mode: authJWT, JWT: JWT{PublicKeyFile: file, UIDClaim: "sub"}}, now); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestTokenEnd: the end of a token in the engine's time never lies before the token's own, however far that is.
func TestTokenEnd(t *testing.T) {
	const now = 7 * time.Second
	for _, c := range []struct {
		name    string
		expires time.Time
		want    time.Duration
	}{
		{"no end", time.Time{}, 0},
		{"in a minute", tokenNow.Add(time.Minute), now + time.Minute + tokenSkew},
		{"within the skew", tokenNow.Add(-time.Second), now + tokenSkew - time.Second},
		{"long ago", tokenNow.Add(-time.Hour), now + 1},
		{"in fifty years", tokenNow.AddDate(50, 0, 0), now + tokenNow.AddDate(50, 0, 0).Sub(tokenNow) + tokenSkew},
		{"the last day that has four digits", time.Unix(253402300799, 0), 0},
		{"the last second", time.Unix(1<<62, 0), 0},
	} {
		if got := tokenEnd(now, c.expires, tokenNow); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// FuzzToken: whatever is in a token, it is refused with a reason that a client can be told, or names a user id and has
// not ended.
func FuzzToken(f *testing.F) {
	auth, err := newAuthenticator(Auth{Mode: authJWT, JWT: JWT{Secret: tokenSecret, UIDClaim: "sub"}}, func() time.Time { return tokenNow })
	if err != nil {
		f.Fatal(err)
	}
	for _, claims := range []string{`{"sub":"alice","exp":1777640400}`, `{"sub":1002}`, `{"sub":"a","exp":1e300}`, `null`, `{"sub":"a","nbf":-1e18,"aud":[{}]}`} {
		f.Add(`{"alg":"HS256","typ":"JWT"}`, claims)
		f.Add(`{"alg":"none"}`, claims)
	}
	f.Add(`{"alg":"HS256","crit":["b64"],"b64":false}`, `{"sub":"alice"}`)
	f.Fuzz(func(t *testing.T, header, claims string) {
		part := base64.RawURLEncoding.EncodeToString
		signing := part([]byte(header)) + "." + part([]byte(claims))
		signature, err := jwt.SigningMethodHS256.Sign(signing, []byte(tokenSecret))
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range []string{signing + "." + part(signature), header + "." + claims, header} {
			who, err := auth.authenticate(token)
			var refused *refusedToken
			switch {
			case errors.As(err, &refused):
				if refused.reason.Code() == 0 || refused.reason.Status() == 0 {
					t.Fatalf("refused for %v, which ends no login", refused.reason)
				}
			case err != nil:
				t.Fatal(err)
			case !ident.ValidUID(who.uid), !who.expires.IsZero() && who.expires.Before(tokenNow.Add(-tokenSkew)):
				t.Fatalf("%q %q is taken for %+v", header, claims, who)
			}
		}
	})
}
