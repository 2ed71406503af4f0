package reservoir_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// make torture passes 5 million.
var cardinality = flag.Int("cardinality", 300_000, "distinct `keys` of TestCardinalityAttack")

// lavish is a store that answers at once and remembers nothing.
type lavish struct{ takes, syncs atomic.Int64 }

func (s *lavish) state(l backend.Limit) backend.State {
	return backend.State{Window: 4102444800000, Left: time.Hour, Remaining: l.Tokens / 2}
}

func (s *lavish) Sync(_ context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	s.syncs.Add(1)
	return backend.SyncReply{State: s.state(r.Limit), Grant: r.Need, Granted: r.Granted + r.Need, Returned: r.Returned, Clients: 1}, nil
}

func (s *lavish) Take(_ context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	s.takes.Add(1)
	return backend.TakeReply{State: s.state(r.Limit), Allowed: true}, nil
}

func (s *lavish) Check(_ context.Context, _ string, l backend.Limit) (backend.State, error) {
	return s.state(l), nil
}

func (s *lavish) Refund(context.Context, backend.RefundRequest) (int64, error) { return 0, nil }

// TestCardinalityAttack: a caller who invents keys gets an answer for each, and
// the memory of no more than WithMaxKeys.
func TestCardinalityAttack(t *testing.T) {
	const held, perKey = 20_000, 400 // bytes; an idle key's are measured elsewhere
	s := new(lavish)
	l, err := reservoir.New(s, reservoir.PerHour(1000), reservoir.WithMaxKeys(held), reservoir.WithFetchTimeout(time.Hour))
	require.NoError(t, err)
	before, most := heap(), uint64(0)
	key := make([]byte, 0, 32)
	for i := range *cardinality {
		key = fmt.Appendf(key[:0], "attacker:%015d", i)
		r, err := l.Allow(context.Background(), string(key))
		require.NoError(t, err)
		require.True(t, r.Allowed)
		if i%(*cardinality/5) == 0 || i == *cardinality-1 {
			most = max(most, heap())
			require.LessOrEqual(t, l.Stats().Keys, held)
		}
	}
	require.Equal(t, held, l.Stats().Keys)
	require.EqualValues(t, *cardinality-held, s.takes.Load(), "past the bound each request is a call of its own")
	require.Less(t, most, before+held*perKey)
	t.Logf("%d keys: %d held, %.1f MB more heap at most, %.0f bytes for each held", *cardinality, held,
		float64(most-before)/1e6, float64(most-before)/held)

	// Who was there before the attack is served from memory still.
	calls := l.Stats().StoreCalls
	_, err = l.Check(context.Background(), "attacker:000000000000007")
	require.NoError(t, err)
	_, err = l.Allow(context.Background(), "attacker:000000000000007")
	require.NoError(t, err)
	require.LessOrEqual(t, l.Stats().StoreCalls, calls+2)
	require.NoError(t, l.Close(context.Background()))
}

// heap is what is in use after all garbage is gone.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // of what finalizers and pools still held
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
