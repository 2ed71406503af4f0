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
	"github.com/go-reservoir/reservoir/lua"
)

// refusal is a way to make a real server refuse what it is asked, and to end that.
type refusal struct {
	row   string // of faults
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
	{"OOM", func(x *refusing) { x.do("config", "set", "maxmemory", "1") }, func(x *refusing) { x.do("config", "set", "maxmemory", "0") }},
	{"NOREPLICAS", func(x *refusing) { x.do("config", "set", "min-replicas-to-write", "1") }, func(x *refusing) { x.do("config", "set", "min-replicas-to-write", "0") }},
	{"READONLY", func(x *refusing) { x.do("replicaof", "127.0.0.1", "1") }, func(x *refusing) { x.do("replicaof", "no", "one") }},
	{"BUSY", func(x *refusing) {
		x.do("config", "set", "busy-reply-threshold", "1")
		endless := x.server.Client(func(o *redis.Options) { o.MaxRetries = -1 })
		go endless.Eval(context.Background(), "while true do end", nil)
		require.Eventually(x.t, func() bool {
			return redis.HasErrorPrefix(x.admin.Ping(context.Background()).Err(), "BUSY")
		}, soon, time.Millisecond)
	}, func(x *refusing) { x.do("script", "kill") }},
	{"WRONGTYPE", func(x *refusing) { x.do("rpush", "{k}", "a") }, func(x *refusing) { x.do("del", "{k}") }},
	{"BADSTATE", func(x *refusing) { x.do("mset", "{k}", "many", "{k}:exp", time.Now().Unix()+60) }, func(x *refusing) { x.do("del", "{k}", "{k}:exp") }},
	{"NOPERM", func(x *refusing) { x.do("acl", "setuser", "default", "-evalsha", "-eval") }, func(x *refusing) { x.do("acl", "setuser", "default", "+evalsha", "+eval") }},
	{"NOPERM", func(x *refusing) { x.do("acl", "setuser", "default", "resetkeys", "~other") }, func(x *refusing) { x.do("acl", "setuser", "default", "allkeys") }},
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
			for _, sc := range []*script{syncScript, takeScript} {
				err := one(t.Context(), x.store, sc)
				failure, ok := errors.AsType[*backend.Error](err)
				require.True(t, ok, "%v", err)
				row := faultOf(failure.Err)
				require.Equal(t, r.row, row.name, "%v", err)
				require.Equal(t, row.class, failure.Class)
				require.NotEqual(t, backend.Unknown, failure.Class)
			}
			r.end(x)
			require.Zero(t, x.admin.Exists(t.Context(), "{k}", "{k}:exp", "{k}:own").Val())
			require.Eventually(t, func() bool { return one(t.Context(), x.store, takeScript) == nil }, soon, time.Millisecond)
		})
	}
}

// TestNoRightMidway: a user who may not use a command that the script comes to
// after its first write. What was written stays, so that is no refusal; and it is
// not said again, which would write once more.
func TestNoRightMidway(t *testing.T) {
	t.Run("scripts", func(t *testing.T) { testNoRightMidway(t) })
	t.Run("functions", func(t *testing.T) { testNoRightMidway(t, WithFunctions()) })
}

func testNoRightMidway(t *testing.T, opts ...Option) {
	server := redistest.Start(t)
	admin := server.Client()
	require.NoError(t, admin.FunctionLoad(t.Context(), lua.Library()).Err())
	for _, row := range []struct {
		without string
		script  *script
		class   backend.Class
		used    string
	}{
		{"hset", syncScript, backend.Rejected, ""}, // the first write itself
		{"set", syncScript, backend.Unknown, ""},
		{"pexpireat", syncScript, backend.Unknown, "4"},
		{"get", syncScript, backend.Rejected, ""},
		{"time", syncScript, backend.Rejected, ""},
		{"set", takeScript, backend.Rejected, ""},
		{"get", checkScript, backend.Rejected, ""},
	} {
		t.Run(row.script.op+" without "+row.without, func(t *testing.T) {
			require.NoError(t, admin.FlushAll(t.Context()).Err())
			require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "poor", "on", "nopass", "allkeys", "+@all", "-"+row.without).Err())
			s := New(server.Client(func(o *redis.Options) { o.Username, o.Password = "poor", "x" }), opts...)
			require.NoError(t, admin.ScriptLoad(t.Context(), row.script.source).Err())
			server.ResetStats()
			err := one(t.Context(), s, row.script)
			failure, ok := errors.AsType[*backend.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, row.class, failure.Class, "%v", err)
			require.EqualValues(t, 1, server.Calls("evalsha", "evalsha_ro", "fcall", "fcall_ro"))
			require.Equal(t, row.used, admin.Get(t.Context(), "{k}").Val())
		})
	}
}

// TestRefusalBeforeFirstWrite: a value of another type, which scripts come upon
// before they write. Nothing was charged, so nobody shall think that something may
// have been, in either form.
func TestRefusalBeforeFirstWrite(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client()
	require.NoError(t, admin.FunctionLoad(t.Context(), lua.Library()).Err())
	require.NoError(t, admin.RPush(t.Context(), "{k}:exp", "a").Err())
	for form, opts := range map[string][]Option{"scripts": nil, "functions": {WithFunctions()}} {
		s := New(server.Client(), opts...)
		for _, sc := range scripts {
			err := one(t.Context(), s, sc)
			failure, ok := errors.AsType[*backend.Error](err)
			require.True(t, ok, "%s: %s: %v", form, sc.op, err)
			require.Equal(t, "WRONGTYPE", faultOf(failure.Err).name, "%s: %s: %v", form, sc.op, err)
			require.Equal(t, backend.Rejected, failure.Class, "%s: %s: %v", form, sc.op, err)
		}
	}
	require.Equal(t, []string{"{k}:exp"}, admin.Keys(t.Context(), "*").Val())
}

// TestMayHaveWritten: what other versions of Redis say.
func TestMayHaveWritten(t *testing.T) {
	first := syncScript.writes
	require.Positive(t, first)
	require.Positive(t, takeScript.writes)
	require.Positive(t, refundScript.writes)
	require.Zero(t, checkScript.writes)
	for _, row := range []struct {
		text  string
		class backend.Class
		final bool
	}{
		{"NOPERM User u has no permissions to run the 'evalsha' command", backend.Rejected, false},
		{fmt.Sprintf("NOPERM ACL failure in script: User u has no permissions to run the 'hset' command script: 5a, on @user_script:%d.", first+9), backend.Unknown, true},
		{fmt.Sprintf("NOPERM ACL failure in script: User u has no permissions to run the 'get' command script: 5a, on @user_script:%d.", first-9), backend.Rejected, false},
		{"NOPERM ACL failure in script", backend.Unknown, true}, // no telling where
		{fmt.Sprintf("ERR user_script:%d: attempt to compare nil with number script: 5a, on @user_script:%d.", first+1, first+1), backend.Unknown, true},
		{fmt.Sprintf("OOM command not allowed when used memory > 'maxmemory'. script: 5a, on @user_script:%d.", first+1), backend.Rejected, false},
	} {
		f := syncScript.faultOf(reply(row.text))
		require.Equal(t, row.class, f.class, row.text)
		require.Equal(t, row.final, f.final, row.text)
	}
	require.Equal(t, backend.Rejected, checkScript.faultOf(reply("NOPERM ACL failure in script")).class, "it writes nothing")
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
				require.Equal(t, "WRONGPASS", faultOf(err).name, "%v", err)
				require.Equal(t, backend.Rejected, classify(err))
			}
			err := one(t.Context(), s, takeScript)
			require.ErrorContains(t, err, "WRONGPASS")
			failure, ok := errors.AsType[*backend.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, backend.Rejected, failure.Class)
		})
	}
}

// together sends n calls in one flight and returns their outcomes.
func together(t *testing.T, s *Store, n int) (failures []error) {
	t.Helper()
	f := &flight{group: s.primary.whole}
	for range n {
		c := newCall(t.Context(), takeScript, "", "k")
		c.ready()
		f.board(c)
	}
	calls := append([]*call(nil), f.calls...)
	f.leg()
	for _, c := range calls {
		failures = append(failures, c.err)
	}
	return failures
}
