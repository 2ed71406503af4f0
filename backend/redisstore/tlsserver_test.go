package redisstore_test

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
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// tlsServer is a server that speaks TLS 1.2 or later on a second port, with a self-signed
// certificate. The methods of Server use the first port, which is plain.
type tlsServer struct {
	*redistest.Server
	pool *x509.CertPool
	port int
}

// startTLS runs a server with a certificate for the name. The server asks its clients for no
// certificate.
func startTLS(t *testing.T, name string) *tlsServer {
	t.Helper()
	cert := certify(t, name)
	s := &tlsServer{pool: x509.NewCertPool()}
	s.pool.AppendCertsFromPEM(cert)
	s.Server = redistest.StartWith(t, func(dir string, port int) []string {
		s.port = port + 10000 // that of the cluster's bus, in a server of a cluster
		file := filepath.Join(dir, "cert.pem")
		require.NoError(t, os.WriteFile(file, cert, 0o600))
		return []string{"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--save", "",
			"--tls-port", strconv.Itoa(s.port), "--tls-ca-cert-file", file, "--tls-cert-file", file, "--tls-key-file", file,
			"--tls-auth-clients", "no", "--tls-protocols", "TLSv1.2 TLSv1.3"}
	})
	return s
}

// Addr returns the host and port that speak TLS.
func (s *tlsServer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Config returns the configuration of a client that trusts the server's certificate for
// the name.
func (s *tlsServer) Config(name string) *tls.Config {
	return &tls.Config{RootCAs: s.pool, ServerName: name, MinVersion: tls.VersionTLS12}
}

// Client is a client of the port that speaks TLS; opts set the TLSConfig.
func (s *tlsServer) Client(opts ...func(*redis.Options)) *redis.Client {
	return s.Server.Client(slices.Insert(opts, 0, func(o *redis.Options) { o.Addr = s.Addr() })...)
}

// certify returns a self-signed certificate for the name and its key, in PEM.
func certify(t *testing.T, name string) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	cert, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
}
