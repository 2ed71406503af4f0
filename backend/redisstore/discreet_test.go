package redisstore_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestUnknownCommandNamesNoKey: Redis repeats what a command it does not know was
// called with. An error says which command that is, and not for which user.
func TestUnknownCommandNamesNoKey(t *testing.T) {
	var args []string
	for _, name := range []string{"evalsha", "evalsha_ro", "multi"} {
		args = append(args, "--rename-command", name, "")
	}
	client := redistest.Start(t, args...).Client()
	said := client.Do(t.Context(), "evalsha", "5a", 1, "{alice@example.com}").Err()
	require.ErrorContains(t, said, "alice", "the server does repeat it")

	s := redisstore.New(client)
	calls := maps.Collect(allCalls(t.Context(), s, "alice@example.com"))
	_, calls["inspect"] = s.Inspect(t.Context(), "alice@example.com")
	for op, err := range calls {
		require.Equal(t, backend.Rejected, class(t, err), op)
		for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
			require.NotContains(t, text, "alice", op)
			require.NotContains(t, text, "with args", op)
		}
		require.ErrorContains(t, err, "unknown command", op)
		var server redis.Error
		require.ErrorAs(t, err, &server, "it is a server's answer")
		require.NotContains(t, server.Error(), "alice", op)
	}
}

// TestNoLogin: Redis answers a command of many arguments by a protocol error if the client has
// not logged in. The error says what is missing.
func TestNoLogin(t *testing.T) {
	server := redistest.Start(t)
	require.NoError(t, server.Client().ConfigSet(t.Context(), "requirepass", "p").Err())
	client := server.Client()
	said := client.Do(t.Context(), "eval", "", 9, 1, 2, 3, 4, 5, 6, 7, 8, 9).Err()
	require.ErrorContains(t, said, "unauthenticated", "the server does not say so")
	for _, c := range callsOf(redisstore.New(client), "k") {
		err := c.do(t.Context())
		for range 100 { // the server closes the connection, and its answer may be lost with that
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				break
			}
			err = c.do(t.Context())
		}
		require.Equal(t, backend.Rejected, class(t, err), "%s: %v", c.op, err)
		require.ErrorContains(t, err, "NOAUTH", c.op)
	}
}
