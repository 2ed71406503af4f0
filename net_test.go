package reservoir

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// network is a store behind a network of the test's making: it takes time, and
// it loses requests and replies as told.
type network struct {
	backend.Store
	delay time.Duration // each way

	mu    sync.Mutex
	calls []string
	fault func(op string) fault // asked once a call; nil = none
	hurt  map[fault]int         // faults that happened
}

type fault int

const (
	fine fault = iota
	loseRequest
	loseReply
	hang   // until the call's context ends; the request is lost
	refuse // the store says that it is loading
)

var errCut = errors.New("connection cut")

func overNetwork(s backend.Store, delay time.Duration) *network {
	return &network{Store: s, delay: delay, hurt: map[fault]int{}}
}

// count is how many calls of op were made, of all operations for "".
func (n *network) count(op string) (c int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.calls {
		if op == "" || o == op {
			c++
		}
	}
	return c
}

func (n *network) set(f func(op string) fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = f
}

func (n *network) happened(f fault) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hurt[f]
}

func (n *network) begin(op string) (f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, op)
	if n.fault != nil {
		f = n.fault(op)
	}
	n.hurt[f]++
	return f
}

// send carries one call over the network. Like a real store it returns when ctx
// ends, though the request may still arrive.
func send[T any](ctx context.Context, n *network, op string, call func(context.Context) (T, error)) (reply T, err error) {
	f := n.begin(op)
	if f == hang {
		<-ctx.Done()
		return reply, &backend.Error{Op: op, Class: backend.Unknown, Err: ctx.Err()}
	}
	if err := pause(ctx, n.delay, nil); err != nil {
		return reply, &backend.Error{Op: op, Class: backend.Unknown, Err: err}
	}
	switch f {
	case loseRequest:
		return reply, &backend.Error{Op: op, Class: backend.Unknown, Err: errCut}
	case refuse:
		return reply, &backend.Error{Op: op, Class: backend.Unavailable, Err: errors.New("LOADING")}
	}
	reply, err = call(context.WithoutCancel(ctx))
	if f == loseReply {
		var none T
		return none, &backend.Error{Op: op, Class: backend.Unknown, Err: errCut}
	}
	if late := pause(ctx, n.delay, nil); late != nil {
		var none T
		return none, &backend.Error{Op: op, Class: backend.Unknown, Err: late}
	}
	return reply, err
}

func (n *network) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return send(ctx, n, "sync", func(ctx context.Context) (backend.SyncReply, error) { return n.Store.Sync(ctx, r) })
}

func (n *network) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return send(ctx, n, "take", func(ctx context.Context) (backend.TakeReply, error) { return n.Store.Take(ctx, r) })
}

func (n *network) Check(ctx context.Context, key string, l Limit) (backend.State, error) {
	return send(ctx, n, "check", func(ctx context.Context) (backend.State, error) { return n.Store.Check(ctx, key, l) })
}

func (n *network) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	return send(ctx, n, "refund", func(ctx context.Context) (int64, error) { return n.Store.Refund(ctx, r) })
}

// open makes a limiter over s that is closed, and checked to balance, at the end.
func open(t *testing.T, s backend.Store, l Limit, opts ...Option) *Limiter {
	t.Helper()
	lim, err := New(s, l, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = lim.Close(context.Background())
		balance(t, lim)
		require.Zero(t, lim.Stats().Held)
	})
	return lim
}

// balance checks that every token is accounted for, once.
func balance(t *testing.T, l *Limiter) {
	t.Helper()
	s := l.Stats()
	require.Equal(t, s.Taken+s.Refunded, s.Spent+s.Returned+s.Expired+s.Held, "%+v", s)
	for _, n := range []int64{s.Taken, s.Refunded, s.Spent, s.Returned, s.Expired, s.Held} {
		require.GreaterOrEqual(t, n, int64(0), "%+v", s)
	}
}

// allow asks for n and fails the test on an error.
func allow(t *testing.T, l *Limiter, key string, n int64) Result {
	t.Helper()
	r, err := l.AllowN(context.Background(), key, n)
	require.NoError(t, err)
	return r
}

// used is what the store has charged to key in the window that is open.
func used(t *testing.T, s backend.Inspector, key string) int64 {
	t.Helper()
	c, err := s.Inspect(context.Background(), key)
	require.NoError(t, err)
	return c.Used
}

var _ backend.Inspector = (*memstore.Store)(nil)
