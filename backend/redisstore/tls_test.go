package redisstore_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

const serverName = "redis.test"

// over makes a client speak TLS by the configuration, or none for nil.
func over(c *tls.Config) func(*redis.Options) {
	return func(o *redis.Options) { o.TLSConfig, o.DialerRetries, o.MaxRetries = c, 1, -1 }
}

func TestTLS(t *testing.T) {
	server := startTLS(t, serverName)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := server.Config(serverName)
		config.MinVersion, config.MaxVersion = version, version
		s := redisstore.New(server.Client(over(config)))
		for op, err := range allCalls(t.Context(), s, fmt.Sprint("k", version)) {
			require.NoError(t, err, op)
		}
	}
	byURL, err := redisstore.Options("rediss://" + server.Addr())
	require.NoError(t, err)
	byURL.TLSConfig.RootCAs, byURL.TLSConfig.ServerName = server.pool, serverName
	client := redis.NewUniversalClient(byURL)
	defer client.Close()
	require.Eventually(t, func() bool { return takeWithin(redisstore.New(client), "k", time.Second) == nil }, 10*time.Second, time.Millisecond)
}

// TestTLSFaults: who is not who it should be gets nothing, and nothing is charged.
func TestTLSFaults(t *testing.T) {
	server, other := startTLS(t, serverName), startTLS(t, serverName)
	unnamed := server.Config("")
	old := server.Config(serverName)
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	toPlain := func(o *redis.Options) { o.Addr, o.DialTimeout = server.Server.Addr(), 50*time.Millisecond }
	none := func(*redis.Options) {}
	for _, row := range []struct {
		what   string
		config *tls.Config
		to     func(*redis.Options)
		class  backend.Class
		text   string
	}{
		{"another name", server.Config("other.test"), none, backend.Rejected, "not other.test"},
		{"the address for a name", unnamed, none, backend.Rejected, "127.0.0.1"},
		{"an unknown authority", other.Config(serverName), none, backend.Rejected, "unknown authority"},
		{"too old", old, none, backend.Rejected, "protocol version"},
		{"a plain client", nil, none, backend.Unavailable, ""},                                  // the connection ends before the call is written
		{"a plain server", server.Config(serverName), toPlain, backend.Unavailable, "deadline"}, // it waits for the line's end
	} {
		t.Run(row.what, func(t *testing.T) {
			s := redisstore.New(server.Client(over(row.config), row.to))
			for op, err := range allCalls(t.Context(), s, "k") {
				require.Equal(t, row.class, class(t, err), "%s: %v (%#v)", op, err, errors.Unwrap(err))
				require.ErrorContains(t, err, row.text, op)
			}
			require.Zero(t, server.Calls("evalsha", "evalsha_ro", "eval", "eval_ro"))
			require.Empty(t, contents(t, server.Server.Client()))
		})
	}
}

// TestTLSOfClients: a server that wants its clients' certificates as well says so
// after the handshake, as TLS 1.3 has it.
func TestTLSOfClients(t *testing.T) {
	server := startTLS(t, serverName)
	require.NoError(t, server.Server.Client().ConfigSet(t.Context(), "tls-auth-clients", "yes").Err())
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := server.Config(serverName)
		config.MaxVersion = version
		s := redisstore.New(server.Client(over(config)))
		for op, err := range allCalls(t.Context(), s, "k") {
			require.Error(t, err, op)
			if network := new(net.OpError); errors.As(err, &network) && network.Op == "remote error" {
				require.Equal(t, backend.Rejected, class(t, err), "%s: %v", op, err)
			}
		}
	}
	require.Empty(t, contents(t, server.Server.Client()))
}
