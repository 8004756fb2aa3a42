package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificate is a self-made certificate for one run, in files of a directory of its own.
type certificate struct{ dir, cert, key string }

// certificateLife is longer than any run.
const certificateLife = 24 * time.Hour

func newCertificate() (c certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sluice bench"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(certificateLife), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return c, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return c, err
	}
	if c.dir, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return c, err
	}
	c.cert, c.key = filepath.Join(c.dir, "cert.pem"), filepath.Join(c.dir, "key.pem")
	return c, errors.Join(
		os.WriteFile(c.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(c.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}

func (c certificate) remove() {
	if c.dir != "" {
		_ = os.RemoveAll(c.dir)
	}
}
