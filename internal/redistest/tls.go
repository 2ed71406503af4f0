package redistest

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
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TLS is a server that speaks TLS 1.2 or later on a second port, with a
// certificate of an authority that only the test knows. The methods of Server
// use the first port, which is plain.
type TLS struct {
	*Server
	CAFile string // the authority's certificate, PEM
	pool   *x509.CertPool
	port   int
}

// StartTLS runs a server whose certificate is for the names, each a host name or
// an IP address, and which asks its clients for none.
func StartTLS(t testing.TB, names ...string) *TLS {
	t.Helper()
	ca, caKey := issue(t, authority(), nil, nil)
	leaf, leafKey := issue(t, bearer(names), ca, caKey)
	s := &TLS{pool: x509.NewCertPool()}
	s.pool.AddCert(ca)
	s.Server = launch(t, func(dir string, port int) []string {
		s.port, s.CAFile = reservePort(t), filepath.Join(dir, "ca.pem")
		cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		write(t, s.CAFile, "CERTIFICATE", ca.Raw)
		write(t, cert, "CERTIFICATE", leaf.Raw)
		der, err := x509.MarshalPKCS8PrivateKey(leafKey)
		if err != nil {
			t.Fatalf("redistest: %v", err)
		}
		write(t, key, "PRIVATE KEY", der)
		return append(serverArgs(dir, port), "--tls-port", strconv.Itoa(s.port), "--tls-ca-cert-file", s.CAFile,
			"--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no", "--tls-protocols", "TLSv1.2 TLSv1.3")
	})
	return s
}

// Addr returns the host and port that speak TLS.
func (s *TLS) Addr() string { return loopback(s.port) }

// Config returns what a client needs to trust the server, if its name is right.
func (s *TLS) Config(name string) *tls.Config {
	return &tls.Config{RootCAs: s.pool, ServerName: name, MinVersion: tls.VersionTLS12}
}

// Client is [Server.Client] at the port that speaks TLS; opts set the TLSConfig.
func (s *TLS) Client(opts ...func(*redis.Options)) *redis.Client {
	at := func(o *redis.Options) { o.Addr = s.Addr() }
	return s.Server.Client(append([]func(*redis.Options){at}, opts...)...)
}

func authority() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redistest"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
}

func bearer(names []string) *x509.Certificate {
	c := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	return c
}

// issue makes a certificate, signed by the parent or by itself.
func issue(t testing.TB, template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
	return cert, key
}

func write(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatalf("redistest: %v", err)
	}
}
