package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/cmd/internal/program"
)

// tokenCmd signs a token as a gateway with auth.jwt.secret accepts it.
type tokenCmd struct {
	UID      string        `name:"uid" required:"" help:"Whose token it is." placeholder:"U"`
	Device   string        `help:"Bind it to one device (claim device_id)." placeholder:"D"`
	TTL      time.Duration `name:"ttl" help:"How long it is good." default:"1h"`
	Secret   string        `required:"" env:"SLUICE_AUTH_JWT_SECRET" help:"The gateway's auth.jwt.secret." placeholder:"S"`
	Issuer   string        `help:"Claim iss, where auth.jwt.issuer asks for one." placeholder:"I"`
	Audience string        `help:"Claim aud, where auth.jwt.audience asks for one." placeholder:"A"`
}

// Run prints the token.
func (c *tokenCmd) Run(context.Context) error {
	token, err := c.sign(time.Now())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, token)
	return err
}

// sign makes an HS256 token that begins at now.
func (c *tokenCmd) sign(now time.Time) (string, error) {
	switch {
	case !ident.ValidUID(c.UID):
		return "", fmt.Errorf("%w: --uid is %q: 1 to %d characters of A-Z a-z 0-9 _ . @ -", program.ErrUsage, c.UID, ident.UIDBytesMax)
	case c.Device != "" && !ident.ValidUID(c.Device):
		return "", fmt.Errorf("%w: --device is %q: 1 to %d characters of A-Z a-z 0-9 _ . @ -", program.ErrUsage, c.Device, ident.UIDBytesMax)
	case c.TTL < time.Second:
		return "", fmt.Errorf("%w: --ttl is %v: at least 1s", program.ErrUsage, c.TTL)
	case c.Secret == "":
		return "", fmt.Errorf("%w: --secret is empty", program.ErrUsage)
	}
	claims := jwt.MapClaims{"sub": c.UID, "iat": now.Unix(), "exp": now.Add(c.TTL).Unix()}
	for name, value := range map[string]string{"device_id": c.Device, "iss": c.Issuer, "aud": c.Audience} {
		if value != "" {
			claims[name] = value
		}
	}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(c.Secret))
}
