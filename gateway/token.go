package gateway

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
)

const (
	// tokenSkew is how far the clocks of the one who signs and of the gateway may differ. It is also the grace of a token
	// that ends while its connection is open.
	tokenSkew = 30 * time.Second
	// tokenLifeMax is the life from which on a token never ends.
	tokenLifeMax = 100 * 365 * 24 * time.Hour
	// tokenBytesMax bounds a token before anything looks at it; common ones have 300 to 1,500 bytes.
	tokenBytesMax = 8192
	// secretBytesMin keeps secrets out of reach of guessing; RFC 7518, 3.2 recommends 32 bytes.
	secretBytesMin = 16
	// rsaBitsMin is RFC 7518, 3.3.
	rsaBitsMin = 2048
	// deviceClaim, when a token has it, binds the token to one device.
	deviceClaim = "device_id"
)

// identity is what a token says.
type identity struct {
	uid string
	// device is empty when the token is good for every device.
	device string
	// expires is the zero time when the token does not end.
	expires time.Time
	// rules are the connection's own limits; nil = as configured.
	rules *rules
}

// refusedToken is why a token is refused. detail is this package's own text, or the logic tier's (auth mode backend).
type refusedToken struct {
	reason reason.Reason
	detail string
}

func (e *refusedToken) Error() string { return e.reason.String() + ": " + e.detail }

// authenticator says whom a token names. The error is a *refusedToken.
type authenticator interface {
	authenticate(token string) (identity, error)
}

// insecure takes the token for the uid. For development on one machine only.
type insecure struct{}

func (insecure) authenticate(token string) (identity, error) {
	if !ident.ValidUID(token) {
		return identity{}, &refusedToken{reason.BadToken, "the token is not a user id"}
	}
	return identity{uid: token}, nil
}

// signed checks JWTs.
type signed struct {
	parser *jwt.Parser
	key    any
	claim  string
}

func newAuthenticator(a Auth, now func() time.Time) (authenticator, error) {
	switch a.Mode {
	case authInsecure:
		return insecure{}, nil
	case authBackend:
		return nil, nil // the logic tier is asked
	}
	key, methods, err := verificationKey(a.JWT)
	if err != nil {
		return nil, err
	}
	// The algorithms follow from the key, never from the token: a public key must not be taken for a secret.
	options := []jwt.ParserOption{jwt.WithValidMethods(methods), jwt.WithLeeway(tokenSkew), jwt.WithTimeFunc(now)}
	if a.JWT.Issuer != "" {
		options = append(options, jwt.WithIssuer(a.JWT.Issuer))
	}
	if a.JWT.Audience != "" {
		options = append(options, jwt.WithAudience(a.JWT.Audience))
	}
	return &signed{parser: jwt.NewParser(options...), key: key, claim: a.JWT.UIDClaim}, nil
}

func verificationKey(j JWT) (key any, methods []string, err error) {
	if j.Secret != "" {
		return []byte(j.Secret), []string{"HS256"}, nil
	}
	text, err := os.ReadFile(j.PublicKeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("auth.jwt.public_key_file: %w", err)
	}
	public, err := parsePublicKey(text)
	if err != nil {
		return nil, nil, fmt.Errorf("auth.jwt.public_key_file %s: %w", j.PublicKeyFile, err)
	}
	switch k := public.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < rsaBitsMin {
			return nil, nil, fmt.Errorf("auth.jwt.public_key_file %s: RSA key of %d bits: want at least %d", j.PublicKeyFile, k.N.BitLen(), rsaBitsMin)
		}
		return k, []string{"RS256"}, nil
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return k, []string{"ES256"}, nil
		}
	case ed25519.PublicKey:
		return k, []string{"EdDSA"}, nil
	}
	return nil, nil, fmt.Errorf("auth.jwt.public_key_file %s: key of type %T: want RSA, P-256 or Ed25519", j.PublicKeyFile, public)
}

var errNoPublicKey = errors.New("no PEM block PUBLIC KEY or CERTIFICATE")

func parsePublicKey(text []byte) (crypto.PublicKey, error) {
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return nil, errNoPublicKey
		}
		switch block.Type {
		case "PUBLIC KEY":
			return x509.ParsePKIXPublicKey(block.Bytes)
		case "RSA PUBLIC KEY":
			return x509.ParsePKCS1PublicKey(block.Bytes)
		case "CERTIFICATE":
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, err
			}
			return c.PublicKey, nil
		}
		text = rest
	}
}

// claims are those that are looked at. The subject is not one of the standard ones here: it may be a number, or another
// claim.
type claims struct {
	Expires   *jwt.NumericDate `json:"exp"`
	NotBefore *jwt.NumericDate `json:"nbf"`
	IssuedAt  *jwt.NumericDate `json:"iat"`
	Issuer    string           `json:"iss"`
	Audience  jwt.ClaimStrings `json:"aud"`
	all       map[string]json.RawMessage
}

// GetExpirationTime implements jwt.Claims.
func (c *claims) GetExpirationTime() (*jwt.NumericDate, error) { return c.Expires, nil }

// GetNotBefore implements jwt.Claims.
func (c *claims) GetNotBefore() (*jwt.NumericDate, error) { return c.NotBefore, nil }

// GetIssuedAt implements jwt.Claims.
func (c *claims) GetIssuedAt() (*jwt.NumericDate, error) { return c.IssuedAt, nil }

// GetIssuer implements jwt.Claims.
func (c *claims) GetIssuer() (string, error) { return c.Issuer, nil }

// GetAudience implements jwt.Claims.
func (c *claims) GetAudience() (jwt.ClaimStrings, error) { return c.Audience, nil }

// GetSubject implements jwt.Claims; nothing is asked of the subject but what uid_claim asks.
func (c *claims) GetSubject() (string, error) { return "", nil }

// UnmarshalJSON keeps the claims that have no fixed name, too.
func (c *claims) UnmarshalJSON(b []byte) error {
	type fixed claims
	if err := json.Unmarshal(b, (*fixed)(c)); err != nil {
		return err
	}
	return json.Unmarshal(b, &c.all)
}

// text is a claim that is a string or a whole number: user ids are both in use.
func (c *claims) text(name string) string {
	raw := c.all[name]
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var n int64
	if json.Unmarshal(raw, &n) == nil {
		return fmt.Sprint(n)
	}
	return ""
}

// errCritical: RFC 7515, 4.1.11: a token with extensions that must be understood is refused by who does not know them, and
// the parser leaves that to its caller.
var errCritical = errors.New("critical extensions")

func (s *signed) keyFor(t *jwt.Token) (any, error) {
	if _, ok := t.Header["crit"]; ok {
		return nil, errCritical
	}
	return s.key, nil
}

func (s *signed) authenticate(token string) (identity, error) {
	if len(token) > tokenBytesMax {
		return identity{}, &refusedToken{reason.BadToken, "the token is too long"}
	}
	var c claims
	_, err := s.parser.ParseWithClaims(token, &c, s.keyFor)
	if err != nil {
		return identity{}, refusalOf(err)
	}
	who := identity{uid: c.text(s.claim), device: c.text(deviceClaim)}
	if !ident.ValidUID(who.uid) {
		return identity{}, &refusedToken{reason.BadToken, "the token names no valid user id"}
	}
	if c.Expires != nil {
		who.expires = c.Expires.Time
	}
	return who, nil
}

// refusalOf says why in words of our own: an error of the parser may quote the token.
func refusalOf(err error) *refusedToken {
	detail := "the token cannot be read"
	switch {
	case errors.Is(err, errCritical):
		detail = "the token has extensions that are not known here"
	case errors.Is(err, jwt.ErrTokenExpired):
		return &refusedToken{reason.TokenExpired, "the token has expired"}
	case errors.Is(err, jwt.ErrTokenSignatureInvalid), errors.Is(err, jwt.ErrTokenUnverifiable):
		detail = "the signature or its algorithm is wrong"
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		detail = "the token is not valid yet"
	case errors.Is(err, jwt.ErrTokenInvalidIssuer):
		detail = "the issuer is another"
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		detail = "the audience is another"
	}
	return &refusedToken{reason.BadToken, detail}
}
