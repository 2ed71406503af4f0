package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

var limit10 = backend.Limit{Tokens: 10, Window: time.Minute}

// reply is an error that a server sent, as go-redis returns it.
type reply string

func (e reply) Error() string { return string(e) }
func (reply) RedisError()     {}

func TestClassify(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	read := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for _, row := range []struct {
		err  error
		want backend.Class
	}{
		{dial, backend.Unavailable},
		{fmt.Errorf("after 5 attempts: %w", dial), backend.Unavailable},
		{&net.OpError{Op: "dial", Err: context.DeadlineExceeded}, backend.Unavailable},
		{redis.ErrPoolTimeout, backend.Unavailable},
		{redis.ErrPoolExhausted, backend.Unavailable},
		{errLate, backend.Unavailable},
		{reply("LOADING Redis is loading the dataset in memory"), backend.Unavailable},
		{reply("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), backend.Unavailable},
		{reply("CLUSTERDOWN The cluster is down"), backend.Unavailable},
		{reply("TRYAGAIN Multiple keys request during rehashing of slot"), backend.Unavailable},
		{reply("NOREPLICAS Not enough good replicas to write."), backend.Unavailable},
		{reply("BUSY Redis is busy running a script."), backend.Unavailable},
		{reply("ERR max number of clients reached"), backend.Unavailable},
		{reply("MOVED 12182 127.0.0.1:7002"), backend.Unavailable},
		{reply("ASK 12182 127.0.0.1:7002"), backend.Unavailable},
		{reply("READONLY You can't write against a read only replica."), backend.Unavailable},
		{reply("NOSCRIPT No matching script. Please use EVAL."), backend.Unavailable},
		{reply("OOM command not allowed when used memory > 'maxmemory'."), backend.Rejected},
		{reply("NOPERM User u has no permissions to run the 'evalsha' command"), backend.Rejected},
		{reply("NOAUTH Authentication required."), backend.Rejected},
		{reply("WRONGPASS invalid username-password pair or user is disabled."), backend.Rejected},
		{reply("CROSSSLOT Keys in request don't hash to the same slot"), backend.Rejected},
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value"), backend.Rejected},
		{reply("BADSTATE the count is not an integer"), backend.Rejected},
		{reply("MISCONF Redis is configured to save RDB snapshots"), backend.Rejected},
		{reply("ERR unknown command 'evalsha_ro'"), backend.Rejected},
		{reply("ERR The user executing the script can't run this command or subcommand"), backend.Rejected},
		{redis.ErrClosed, backend.Rejected},
		{read, backend.Unknown},
		{&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}, backend.Unknown},
		{&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, backend.Unknown},
		{io.EOF, backend.Unknown},
		{io.ErrUnexpectedEOF, backend.Unknown},
		{context.Canceled, backend.Unknown},
		{context.DeadlineExceeded, backend.Unknown},
		{errors.New("redis: can't parse int"), backend.Unknown},
		{redis.Nil, backend.Unknown}, // no reply of a script
	} {
		require.Equal(t, row.want, classify(row.err), "%v", row.err)
	}
}

// TestKeyOnly: an answer about a slot or a value says nothing of other keys, and all
// others do.
func TestKeyOnly(t *testing.T) {
	for _, f := range faults {
		require.Equal(t, slices.Contains(ofKeys, f.name), f.keyOnly, f.name)
	}
	for text, want := range map[reply]bool{
		"CLUSTERDOWN Hash slot not served":                        true,
		"TRYAGAIN Multiple keys request during rehashing of slot": true,
		"CLUSTERDOWN The cluster is down":                         false,
		"NOPERM No permissions to access a key":                   false,
		"OOM command not allowed when used memory > 'maxmemory'.": false,
	} {
		failure, ok := errors.AsType[*backend.Error](wrap("sync", text))
		require.True(t, ok)
		require.Equal(t, want, failure.KeyOnly, text)
		require.Contains(t, failure.Error(), string(text))
	}
}

// TestMayRepeat: what may be said again after which failure.
func TestMayRepeat(t *testing.T) {
	for _, row := range []struct {
		script                         *script
		unavailable, unknown, rejected bool
	}{
		{syncScript, true, true, false},
		{checkScript, true, true, false},
		{takeScript, true, false, false},
		{refundScript, true, true, false},
	} {
		require.Equal(t, row.unavailable, row.script.mayRepeat(backend.Unavailable), row.script.op)
		require.Equal(t, row.unknown, row.script.mayRepeat(backend.Unknown), row.script.op)
		require.Equal(t, row.rejected, row.script.mayRepeat(backend.Rejected), row.script.op)
	}
}

// TestPipelinedSync: a sync that waits in a pipeline with others, under the
// default options of go-redis, is executed once when the reply is lost, and the
// next statement gets what it granted.
func TestPipelinedSync(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(func(o *redis.Options) { o.Addr = proxy.Addr() })
	testPipelinedSync(t, client, proxy, server.Calls, server.ResetStats)
}

func TestPipelinedSyncOnCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0)
	proxy := redistest.NewProxy(t, cluster.NodeOf("{k}").Addr())
	client := cluster.Client(func(o *redis.ClusterOptions) { o.Dialer = redistest.Dialer(proxy) })
	testPipelinedSync(t, client, proxy, cluster.Calls, cluster.ResetStats)
}

func testPipelinedSync(t *testing.T, client redis.UniversalClient, proxy *redistest.Proxy, calls func(...string) int64, reset func()) {
	s := New(client)
	request := backend.SyncRequest{Key: "k", Client: "a", Limit: limit10, Want: 4, Strand: -1}
	_, err := s.Check(t.Context(), "k", limit10) // the connection is up
	require.NoError(t, err)
	require.NoError(t, client.ScriptLoad(t.Context(), syncScript.source).Err())

	reset()
	proxy.SwallowReply("evalsha", 1)
	c := s.sync(t.Context(), request)
	c.finish()
	c.stamp(reading{}, false)
	_, err = client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		return p.Process(t.Context(), c.cmd)
	})
	require.Error(t, err)
	require.EqualValues(t, 1, proxy.Swallowed())
	require.EqualValues(t, 1, calls("evalsha"))
	require.EqualValues(t, "4", client.Get(t.Context(), "{k}").Val())

	got, err := s.Sync(t.Context(), request)
	require.NoError(t, err)
	require.EqualValues(t, 4, got.Grant)
	require.EqualValues(t, 4, got.Recovered)
	require.EqualValues(t, 6, got.Remaining)
}

// TestServerClockSteps: the estimate of the server's clock is wrong after a step
// or a failover. That costs a call nothing but a repetition.
func TestServerClockSteps(t *testing.T) {
	s := New(redistest.Start(t).Client())
	s.clock.heard(time.Now().Add(-time.Hour).UnixMicro()) // it was an hour behind
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got, err := s.Take(ctx, backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 3})
	require.NoError(t, err)
	require.EqualValues(t, 7, got.Remaining, "charged once")
}

// TestTestClockIsNotHeard: the instants of a test are no reading of the server's
// clock, and no deadline is compared with them.
func TestTestClockIsNotHeard(t *testing.T) {
	s := New(redistest.Start(t).Client())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, d := range []time.Duration{0, time.Hour, 24 * time.Hour} {
		_, err := s.Take(storeclock.With(ctx, time.Now().Add(d)), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
		require.NoError(t, err)
	}
	require.False(t, s.clock.known)
}

func TestServerClock(t *testing.T) {
	var c serverClock
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(time.Hour))
	defer cancel()
	deadline, _ := ctx.Deadline()
	require.Zero(t, c.limit(ctx), "not known yet")
	c.heard(time.Now().Add(time.Minute).UnixMicro()) // a minute ahead of us
	require.Zero(t, c.limit(context.Background()), "no deadline")
	want := deadline.Add(time.Minute + margin)
	require.WithinDuration(t, want, time.UnixMicro(c.limit(ctx)), 5*time.Millisecond)
	c.heard(time.Now().Add(-time.Minute).UnixMicro()) // a slow reply, or a node that is behind
	require.WithinDuration(t, want, time.UnixMicro(c.limit(ctx)), 5*time.Millisecond)
	// After a while only what was heard of late counts.
	c.turned -= turn + time.Second
	c.heard(time.Now().Add(-time.Minute).UnixMicro())
	require.WithinDuration(t, want, time.UnixMicro(c.limit(ctx)), 5*time.Millisecond)
	c.turned -= turn + time.Second
	c.heard(time.Now().Add(-time.Minute).UnixMicro())
	require.WithinDuration(t, deadline.Add(-time.Minute+margin), time.UnixMicro(c.limit(ctx)), 5*time.Millisecond)
}
