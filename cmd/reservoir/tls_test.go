package main

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// SSL_CERT_FILE, which is read once in a process, says whom rediss trusts. What answers here
// is no Redis, but only to a client that trusts its certificate.
func TestTLS(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	ours := filepath.Join(t.TempDir(), "cert.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(ours, cert, 0o600))
	_, port, _ := strings.Cut(server.Listener.Addr().String(), ":")
	for _, row := range []struct {
		what, host, trust, want string
	}{
		{"trusted", "127.0.0.1", ours, "HTTP/1.1 400"},
		{"an unknown authority", "127.0.0.1", "/dev/null", "x509: "},
		{"another's name", "localhost", ours, "x509: "},
	} {
		t.Run(row.what, func(t *testing.T) {
			env := []string{"SSL_CERT_FILE=" + row.trust, "SSL_CERT_DIR=" + t.TempDir()}
			// A busy machine may be late for the time-outs of a few tries.
			for deadline := time.Now().Add(20 * time.Second); ; {
				o := start(t, env, "inspect", "-store", "rediss://u:"+canary+"@"+row.host+":"+port, "k").end()
				require.NotContains(t, o.stdout+o.stderr, canary)
				require.Equal(t, exitFailure, o.status, o.stdout)
				o.requireOneLine(t)
				if strings.Contains(o.stderr, row.want) {
					return
				}
				require.True(t, time.Now().Before(deadline), o.stderr)
			}
		})
	}
}
