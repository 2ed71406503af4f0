package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
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

// charge charges n tokens without an account, or none.
func charge(ctx context.Context, s backend.Store, key string, l backend.Limit, n int64) (backend.Reply, error) {
	return s.Sync(ctx, backend.Statement{Key: key, Limit: l, Need: n})
}

// TestClassify: failures that are no server's answer.
func TestClassify(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, row := range []struct {
		err           error
		class, unsent backend.Class // of a call that was written, and of one that was not
		reload        bool
	}{
		{dial, backend.Unknown, backend.Unavailable, true},
		{redis.ErrPoolTimeout, backend.Unknown, backend.Unavailable, true},
		{io.EOF, backend.Unknown, backend.Unavailable, true},
		{&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}, backend.Unknown, backend.Unavailable, true},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, backend.Unknown, backend.Rejected, true},
		{context.DeadlineExceeded, backend.Unknown, backend.Unavailable, true},
		{context.Canceled, backend.Unknown, backend.Unavailable, false}, // it says nothing of the server
		{errors.New("redis: can't parse int"), backend.Unknown, backend.Unavailable, true},
		{redis.Nil, backend.Unknown, backend.Unavailable, true}, // no reply of a script
		{redis.ErrClosed, backend.Rejected, backend.Rejected, false},
		{errLate, backend.Unavailable, backend.Unavailable, false},
		{errExpired, backend.Unavailable, backend.Unavailable, false},
		{ErrNotReplicated, backend.Unknown, backend.Unknown, false},
	} {
		require.Equal(t, row.class, faultOf(row.err).class, "%v", row.err)
		require.Equal(t, row.reload, faultOf(row.err).reload, "%v", row.err)
		if row.err != ErrNotReplicated {
			require.Equal(t, row.unsent, faultOf(unsent{row.err}).class, "%v", row.err)
		}
	}
}

// TestLateForItsCaller: a caller whose time is over gets its context's error, also where
// the server's reply says so first.
func TestLateForItsCaller(t *testing.T) {
	for left, expired := range map[time.Duration]bool{-time.Millisecond: true, time.Hour: false} {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		defer cancel()
		c := &call{script: syncScript, ctx: ctx, cmd: command{redis.NewIntSliceCmd(ctx)}}
		c.cmd.SetVal([]int64{flagLate, 1})
		require.EqualValues(t, 1, c.judge(nil))
		require.Equal(t, expired, errors.Is(c.err, context.DeadlineExceeded))
		require.ErrorIs(t, c.err, errLate)
	}
}

// TestServerClockSteps: the estimate of the server's clock is wrong after a step
// or a failover. That costs a call nothing but a repetition.
func TestServerClockSteps(t *testing.T) {
	s := New(redistest.Start(t).Client())
	s.clock.observe(time.Now().Add(-time.Hour).UnixMicro()) // it was an hour behind
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got, err := charge(ctx, s, "k", limit10, 3)
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
		_, err := charge(storeclock.With(ctx, time.Now().Add(d)), s, "k", limit10, 1)
		require.NoError(t, err)
	}
	require.True(t, s.clock.ahead() == 0)
}

func TestServerClock(t *testing.T) {
	var c serverClock
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(time.Hour))
	defer cancel()
	deadline, _ := ctx.Deadline()
	require.Zero(t, notAfter(ctx, c.ahead()), "not known yet")
	c.observe(time.Now().Add(time.Minute).UnixMicro()) // a minute ahead of us
	require.Zero(t, notAfter(context.Background(), c.ahead()), "no deadline")
	want := deadline.Add(time.Minute + margin)
	require.WithinDuration(t, want, time.UnixMicro(notAfter(ctx, c.ahead())), 5*time.Millisecond)
	c.observe(time.Now().Add(-time.Minute).UnixMicro()) // a slow reply, or a node that is behind
	require.WithinDuration(t, want, time.UnixMicro(notAfter(ctx, c.ahead())), 5*time.Millisecond)
	// After a while only what was heard of late counts.
	c.turned -= turn + time.Second
	c.observe(time.Now().Add(-time.Minute).UnixMicro())
	require.WithinDuration(t, want, time.UnixMicro(notAfter(ctx, c.ahead())), 5*time.Millisecond)
	c.turned -= turn + time.Second
	c.observe(time.Now().Add(-time.Minute).UnixMicro())
	require.WithinDuration(t, deadline.Add(-time.Minute+margin), time.UnixMicro(notAfter(ctx, c.ahead())), 5*time.Millisecond)
}

// Ahead is by how much the server's clock is ahead of the machine's, as far as the store knows.
func Ahead(s *Store) time.Duration {
	return s.clock.ahead() - time.Duration(time.Now().UnixNano()) + time.Since(started)
}
