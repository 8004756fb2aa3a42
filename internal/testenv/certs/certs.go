// Package certs makes the certificates of tests: an authority of a test's own, and what it signs, in PEM files.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// around is how long before and after now a certificate is good.
const around = time.Hour

// Authority signs certificates.
type Authority struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Files are PEM files: a certificate, its key, and the certificate of the authority that signed it.
type Files struct{ Cert, Key, CA string }

// New is an authority that nobody else trusts.
func New(t testing.TB) *Authority {
	t.Helper()
	key := newKey(t)
	template := template("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	cert, err := x509.ParseCertificate(sign(t, template, template, key, key))
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{Cert: cert, key: key}
}

// Issue makes a certificate for 127.0.0.1, good for servers and clients, in a directory of its own.
func (a *Authority) Issue(t testing.TB, name string) Files {
	t.Helper()
	key := newKey(t)
	template := template(name)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(file, kind string, der []byte) string {
		file = filepath.Join(dir, file)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return Files{
		Cert: write("cert.pem", "CERTIFICATE", sign(t, template, a.Cert, key, a.key)),
		Key:  write("key.pem", "PRIVATE KEY", secret),
		CA:   write("ca.pem", "CERTIFICATE", a.Cert.Raw),
	}
}

// Pair is the certificate and its key as crypto/tls wants them.
func (f Files) Pair(t testing.TB) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func template(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-around), NotAfter: now.Add(around)}
}

func sign(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
