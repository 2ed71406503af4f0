package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// refusal is a way to make a real server refuse what it is asked, and to end that.
type refusal struct {
	row   string // how the answer begins
	class backend.Class
	start func(x *refusing)
	end   func(x *refusing)
}

// refusing is a store on a server that refuses.
type refusing struct {
	t      *testing.T
	server *redistest.Server
	admin  *redis.Client // connected from before
	store  *Store
}

func (x *refusing) do(args ...any) {
	x.t.Helper()
	require.NoError(x.t, x.admin.Do(x.t.Context(), args...).Err())
}

var refusals = []refusal{
	{"OOM", backend.Rejected, func(x *refusing) { x.do("config", "set", "maxmemory", "1") }, func(x *refusing) { x.do("config", "set", "maxmemory", "0") }},
	{"NOREPLICAS", backend.Unavailable, func(x *refusing) { x.do("config", "set", "min-replicas-to-write", "1") }, func(x *refusing) { x.do("config", "set", "min-replicas-to-write", "0") }},
	{"READONLY", backend.Unavailable, func(x *refusing) { x.do("replicaof", "127.0.0.1", "1") }, func(x *refusing) { x.do("replicaof", "no", "one") }},
	{"BUSY", backend.Unavailable, func(x *refusing) {
		x.do("config", "set", "busy-reply-threshold", "1")
		endless := x.server.Client(func(o *redis.Options) { o.MaxRetries = -1 })
		go endless.Eval(context.Background(), "while true do end", nil)
		require.Eventually(x.t, func() bool {
			return redis.HasErrorPrefix(x.admin.Ping(context.Background()).Err(), "BUSY")
		}, soon, time.Millisecond)
	}, func(x *refusing) { x.do("script", "kill") }},
	{"WRONGTYPE", backend.Rejected, func(x *refusing) { x.do("rpush", "{k}:60s:own", "a") }, func(x *refusing) { x.do("del", "{k}:60s:own") }},
	{"BADSTATE", backend.Rejected, func(x *refusing) { x.do("mset", "{k}:60s", "many", "{k}:60s:exp", "soon") }, func(x *refusing) { x.do("del", "{k}:60s", "{k}:60s:exp") }},
	{"NOPERM", backend.Rejected, func(x *refusing) { x.do("acl", "setuser", "default", "-evalsha", "-eval") }, func(x *refusing) { x.do("acl", "setuser", "default", "+evalsha", "+eval") }},
	{"NOPERM", backend.Rejected, func(x *refusing) { x.do("acl", "setuser", "default", "resetkeys", "~other") }, func(x *refusing) { x.do("acl", "setuser", "default", "allkeys") }},
}

// TestRefusals: what a real server refuses leaves nothing behind, is said again or
// not as its class demands, and is served once the reason is gone.
func TestRefusals(t *testing.T) {
	for i, r := range refusals {
		t.Run(fmt.Sprint(i, " ", r.row), func(t *testing.T) {
			server := redistest.Start(t)
			x := &refusing{t, server, server.Client(func(o *redis.Options) { o.PoolSize = 1 }), New(server.Client())}
			x.do("ping")
			for _, sc := range scripts {
				x.do("script", "load", sc.source)
			}
			r.start(x)
			for _, sc := range []*script{syncScript, resetScript} {
				err := one(t.Context(), x.store, sc)
				failure, ok := errors.AsType[*backend.Error](err)
				require.True(t, ok, "%v", err)
				require.True(t, redis.HasErrorPrefix(err, r.row), "%v", err)
				require.Equal(t, r.class, failure.Class)
			}
			r.end(x)
			require.Zero(t, x.admin.Exists(t.Context(), "{k}:60s", "{k}:60s:exp", "{k}:60s:own").Val())
			require.Eventually(t, func() bool { return one(t.Context(), x.store, syncScript) == nil }, soon, time.Millisecond)
		})
	}
}

// TestRefusedConnection: what a server says to a new connection is the answer to
// each call of the pipeline for which that was made.
func TestRefusedConnection(t *testing.T) {
	server := redistest.Start(t)
	server.SetUser("user u on >right ~* +@all")
	for _, row := range []struct {
		what  string
		calls int
		opts  []Option
	}{
		{"a pipeline", 3, nil},
		{"one call with WAIT", 1, []Option{WithReplicaAck(1, time.Second)}},
		{"a pipeline with WAIT", 3, []Option{WithReplicaAck(1, time.Second)}},
	} {
		t.Run(row.what, func(t *testing.T) {
			s := New(server.Client(redistest.User("u", "wrong")), row.opts...)
			for _, err := range together(t, s, row.calls) {
				require.ErrorContains(t, err, "WRONGPASS")
				require.Equal(t, backend.Rejected, faultOf(err).class)
			}
			err := one(t.Context(), s, syncScript)
			require.ErrorContains(t, err, "WRONGPASS")
			failure, ok := errors.AsType[*backend.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, backend.Rejected, failure.Class)
		})
	}
}

// together sends n calls in one pipeline and returns their outcomes.
func together(t *testing.T, s *Store, n int) (failures []error) {
	t.Helper()
	var batch []*call
	for range n {
		require.True(t, s.calls.Begin())
		c := s.newCall(t.Context(), syncScript, "k", limit10)
		c.done = make(chan struct{}, 1)
		c.declare(3)
		batch = append(batch, c)
	}
	s.whole.send(batch, false)
	s.whole.complete(batch, false)
	for _, c := range batch {
		failures = append(failures, c.err)
	}
	return failures
}
