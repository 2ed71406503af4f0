package redistest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TLS is a server that speaks TLS 1.2 or later on a second port, with a self-signed
// certificate. The methods of Server use the first port, which is plain.
type TLS struct {
	*Server
	CAFile string // the certificate, PEM, with its key
	pool   *x509.CertPool
	port   int
}

// StartTLS runs a server with a certificate for the name, a host name or an IP address.
// The server asks its clients for no certificate.
func StartTLS(t testing.TB, name string) *TLS {
	t.Helper()
	cert := certify(t, name)
	s := &TLS{pool: x509.NewCertPool()}
	s.pool.AppendCertsFromPEM(cert)
	s.Server = StartWith(t, func(dir string, port int) []string {
		s.port, s.CAFile = reservePort(t), filepath.Join(dir, "cert.pem")
		check(t, os.WriteFile(s.CAFile, cert, 0o600))
		return append(serverArgs(dir, port), "--tls-port", strconv.Itoa(s.port), "--tls-ca-cert-file", s.CAFile,
			"--tls-cert-file", s.CAFile, "--tls-key-file", s.CAFile, "--tls-auth-clients", "no", "--tls-protocols", "TLSv1.2 TLSv1.3")
	})
	return s
}

// Addr returns the host and port that speak TLS.
func (s *TLS) Addr() string { return loopback(s.port) }

// Config returns the configuration of a client that trusts the server's certificate for
// the name.
func (s *TLS) Config(name string) *tls.Config {
	return &tls.Config{RootCAs: s.pool, ServerName: name, MinVersion: tls.VersionTLS12}
}

// Client is [Server.Client] at the port that speaks TLS; opts set the TLSConfig.
func (s *TLS) Client(opts ...func(*redis.Options)) *redis.Client {
	return newClient(s.t, redis.NewClient, &redis.Options{Addr: s.Addr()}, opts)
}

// certify returns a self-signed certificate for the name and its key, in PEM.
func certify(t testing.TB, name string) []byte {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	public, private, err := ed25519.GenerateKey(nil)
	check(t, err)
	cert, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	check(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(private)
	check(t, err)
	return slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
}

// check ends the test at an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
}
