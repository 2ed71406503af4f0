package redisstore

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestSlotIsOnBothSides: while a slot moves with one key of a limit here and one
// there, Redis serves neither node's clients. The call waits for the rest.
func TestSlotIsOnBothSides(t *testing.T) {
	x := newNodes(t)
	from, to := x.cluster.Nodes[0], x.cluster.Nodes[1]
	key := x.keys(from, "k", 1)[0]
	tag := "{" + key + "}"
	x.take(t.Context(), []string{key}, x.allowed)
	x.wg.Wait()
	rest := x.halfway(tag, to)
	before := x.spent(key)
	x.take(t.Context(), []string{key}, x.allowed)
	x.await(func() bool { return x.spent(key) > before })
	require.Zero(t, to.Calls("evalsha"))
	rest()
	x.wg.Wait()
	require.EqualValues(t, 1, to.Calls("evalsha"))
	require.Equal(t, "2", to.Client().Get(t.Context(), tag).Val())
}

// halfway begins to move the key's slot: its count has gone, its end has not. It
// returns what moves the rest.
func (x *nodes) halfway(tag string, to *redistest.Server) func() {
	x.t.Helper()
	from := x.cluster.NodeOf(tag)
	host, port, err := net.SplitHostPort(to.Addr())
	require.NoError(x.t, err)
	do := func(s *redistest.Server, args ...any) string {
		text, err := s.Client().Do(x.t.Context(), args...).Text()
		require.NoError(x.t, err)
		return text
	}
	slot := x.cluster.SlotOf(tag)
	target := do(to, "cluster", "myid")
	do(to, "cluster", "setslot", slot, "importing", do(from, "cluster", "myid"))
	do(from, "cluster", "setslot", slot, "migrating", target)
	do(from, "migrate", host, port, tag, 0, 5000)
	return func() {
		do(from, "migrate", host, port, tag+expSuffix, 0, 5000)
		do(to, "cluster", "setslot", slot, "node", target)
		do(from, "cluster", "setslot", slot, "node", target)
	}
}

// spent returns how many repetitions the key's node has been charged for.
func (x *nodes) spent(key string) float64 {
	g := x.primary.group(x.t.Context(), "{"+key+"}")
	g.mu.Lock()
	defer g.mu.Unlock()
	return reserve + earned*float64(g.budget.seen) - g.budget.have
}

// TestGate: however many failures there are at once, one of them acts.
func TestGate(t *testing.T) {
	var g gate
	var passed atomic.Int64
	began := time.Now()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 1000 {
				if g.pass() {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, passed.Load())
	require.LessOrEqual(t, passed.Load(), 1+int64(time.Since(began)/rest))
	require.Eventually(t, g.pass, soon, time.Millisecond, "and again after a while")
}

// TestSuccession: who serves a node's slots, through a failover, one after that,
// the way back, and a former master that claims its slots for a moment.
func TestSuccession(t *testing.T) {
	var clock serverClock
	a, b, c := newGroup(nil, &clock, lanes), newGroup(nil, &clock, lanes), newGroup(nil, &clock, lanes)
	require.Same(t, a, a.current("k"))
	a.succeed(b)
	require.Same(t, b, a.current("k"))
	b.succeed(c)
	require.Same(t, c, a.current("k"))
	c.succeed(a)
	for _, g := range []*group{a, b, c} {
		require.Same(t, a, g.current("k"))
	}
	a.succeed(b)
	b.deny(reply("ASK 7 127.0.0.1:1"), "k")
	require.Same(t, b, a.current("k"), "the slot is still its own")
	b.deny(reply("MOVED 7 127.0.0.1:1"), "k")
	require.Same(t, a, a.current("k"))
	require.Same(t, b, a.current("other"), "one slot has moved")
	a.succeed(b)
	require.Same(t, b, a.current("k"))
	for i := range fewMoves + 1 {
		b.deny(reply("MOVED 7 127.0.0.1:1"), fmt.Sprint(i))
	}
	require.Same(t, a, a.current("other"), "it has nothing")
	a.succeed(b)
	b.deny(reply("READONLY You can't write against a read only replica."), "k")
	require.Same(t, a, a.current("other"))
	a.succeed(b)
	require.Same(t, b, a.current("k"))
	// Found by two at the same time, each the other's: no loop.
	a.next.Store(&heir{group: b, denied: b.denied.Load()})
	b.next.Store(&heir{group: a, denied: a.denied.Load()})
	a.current("k")
}

// TestNoSearchOnCancel: a caller that leaves says nothing of the server, whatever
// its call waited for.
func TestNoSearchOnCancel(t *testing.T) {
	for _, err := range []error{context.Canceled, unsent{context.Canceled}, &net.OpError{Op: "dial", Err: context.Canceled}} {
		require.Equal(t, noCure, faultOf(err).cure, "%v", err)
	}
	for _, err := range []error{context.DeadlineExceeded, unsent{context.DeadlineExceeded}, &net.OpError{Op: "dial", Err: context.DeadlineExceeded}} {
		require.Equal(t, findHeir, faultOf(err).cure, "%v", err)
	}
	for _, row := range faults {
		if row.name == "cancelled" || row.name == "left unsent" || row.name == "late" || row.class == backend.Rejected {
			require.Equal(t, noCure, row.cure, row.name)
		}
	}
}
