package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// SSL_CERT_FILE, which is read once in a process, says whom rediss trusts.
func TestTLS(t *testing.T) {
	server, wrong := redistest.StartTLS(t, "127.0.0.1"), redistest.StartTLS(t, "other.test")
	server.SetUser("user u on >" + canary + " ~* +@all")
	for _, row := range []struct {
		what, store, trust, want string
	}{
		{"trusted", "rediss://u:" + canary + "@" + server.Addr(), server.CAFile, ""},
		{"an unknown authority", "rediss://u:" + canary + "@" + server.Addr(), wrong.CAFile, "x509: "},
		{"another's name", "rediss://u:" + canary + "@" + wrong.Addr(), wrong.CAFile, "x509: "},
		{"a plain client", "redis://u:" + canary + "@" + server.Addr(), server.CAFile, server.Addr() + ": "},
		{"a wrong password", "rediss://u:" + canary + "x@" + server.Addr(), server.CAFile, "WRONGPASS"},
	} {
		t.Run(row.what, func(t *testing.T) {
			env := []string{"SSL_CERT_FILE=" + row.trust, "SSL_CERT_DIR=" + t.TempDir()}
			// A busy machine may be late for the time-outs of a few tries.
			for deadline := time.Now().Add(20 * time.Second); ; {
				o := start(t, env, "inspect", "-store", row.store, "k").end()
				require.NotContains(t, o.stdout+o.stderr, canary)
				if row.want == "" && o.status == exitOK {
					require.Contains(t, o.stdout, "none is open")
					return
				}
				require.Equal(t, exitFailure, o.status, o.stdout)
				o.requireOneLine(t)
				if row.want != "" && strings.Contains(o.stderr, row.want) {
					return
				}
				require.True(t, time.Now().Before(deadline), o.stderr)
			}
		})
	}
}
