package main

import (
	"errors"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-im/sluice/cmd/internal/program"
)

func TestToken(t *testing.T) {
	now := time.Now()
	c := tokenCmd{UID: "alice", Device: "phone", TTL: time.Hour, Secret: "s3cret", Issuer: "me", Audience: "you"}
	signed, err := c.sign(now)
	if err != nil {
		t.Fatal(err)
	}
	claims := jwt.MapClaims{}
	_, err = jwt.ParseWithClaims(signed, claims, func(*jwt.Token) (any, error) { return []byte("s3cret"), nil },
		jwt.WithValidMethods([]string{"HS256"}), jwt.WithIssuer("me"), jwt.WithAudience("you"), jwt.WithExpirationRequired())
	if err != nil {
		t.Fatal(err)
	}
	if claims["sub"] != "alice" || claims["device_id"] != "phone" {
		t.Errorf("claims: %v", claims)
	}
	if exp, err := claims.GetExpirationTime(); err != nil || exp.Unix() != now.Add(time.Hour).Unix() {
		t.Errorf("exp: %v, %v", exp, err)
	}
	for _, bad := range []tokenCmd{
		{UID: "a b", TTL: time.Hour, Secret: "s"}, {UID: "a", Device: "a b", TTL: time.Hour, Secret: "s"},
		{UID: "a", TTL: 0, Secret: "s"}, {UID: "a", TTL: time.Hour},
	} {
		if _, err := bad.sign(now); !errors.Is(err, program.ErrUsage) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
