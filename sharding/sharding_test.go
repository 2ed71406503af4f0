package sharding_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/sharding"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var limit10 = backend.Limit{Tokens: 10, Window: time.Minute}

// over returns a store over shards of these names.
func over(t testing.TB, names ...string) *sharding.Store {
	t.Helper()
	shards := make(map[string]backend.Store)
	for _, name := range names {
		shards[name] = memstore.New()
	}
	s, err := sharding.New(shards)
	require.NoError(t, err)
	return s
}

func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("shard", i))
	}
	return names
}

// TestVectors: where keys lie. A change of this table moves the limits of users
// to servers that do not know them: it is a breaking change.
func TestVectors(t *testing.T) {
	s := over(t, "a", "b", "c", "d", "e")
	for key, want := range vectors {
		require.Equal(t, want, s.Shard(key), "%q", key)
	}
}

func TestSuite(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backend.Store { return over(t, numbered(5)...) })
}

func TestNew(t *testing.T) {
	faulty := redisstore.New(nil)
	for _, row := range []struct {
		what   string
		shards map[string]backend.Store
		want   string
	}{
		{"none", nil, "no shards"},
		{"empty", map[string]backend.Store{}, "no shards"},
		{"no name", map[string]backend.Store{"": memstore.New()}, "without a name"},
		{"no store", map[string]backend.Store{"a": memstore.New(), "b": nil}, `"b" has no store`},
		{"a faulty store", map[string]backend.Store{"a": memstore.New(), "b": faulty}, `"b": reservoir: open`},
		{"one is enough", map[string]backend.Store{"a": memstore.New()}, ""},
	} {
		s, err := sharding.New(row.shards)
		if row.want == "" {
			require.NoError(t, err, row.what)
			require.NotNil(t, s)
			continue
		}
		require.ErrorContains(t, err, row.want, row.what)
		require.Nil(t, s)
	}
	_, err := sharding.New(map[string]backend.Store{"b": faulty})
	require.ErrorIs(t, err, errors.Unwrap(faulty.Err()))
}

// TestDistribution: 30,000 keys of some forms over N shards. Chi-square with
// N-1 degrees of freedom has mean N-1 and deviation √(2(N-1)); the bound is six
// deviations up. The keys are fixed, so the test is too.
func TestDistribution(t *testing.T) {
	for _, n := range []int{2, 3, 7, 16, 50} {
		for _, form := range []string{"user:%d", "%d", "/api/v1/items/%d/read", "%08x", "10.0.0.%d"} {
			s := over(t, numbered(n)...)
			const keys = 15_000
			count := make(map[string]float64)
			for i := range keys {
				count[s.Shard(fmt.Sprintf(form, i))]++
			}
			require.Len(t, count, n)
			var chi float64
			want := float64(keys) / float64(n)
			for _, got := range count {
				chi += (got - want) * (got - want) / want
			}
			df := float64(n - 1)
			require.Less(t, (chi-df)*(chi-df)*sign(chi-df), 36*2*df, "%d shards, %s: chi-square %.1f", n, form, chi)
		}
	}
}

// sign is 0 for what is below its mean.
func sign(x float64) float64 {
	if x < 0 {
		return 0
	}
	return 1
}

// TestMovement: a shard that joins takes one key in N, and none moves between
// the others.
func TestMovement(t *testing.T) {
	const keys = 20_000
	for n := 1; n <= 12; n++ {
		before, after := over(t, numbered(n)...), over(t, numbered(n+1)...)
		moved := 0
		for i := range keys {
			key := fmt.Sprint("user:", i)
			if from, to := before.Shard(key), after.Shard(key); from != to {
				require.Equal(t, fmt.Sprint("shard", n), to, "only to the new one")
				moved++
			}
		}
		require.InEpsilon(t, keys/(n+1), moved, 0.05)
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	s := over(t, numbered(16)...)
	require.Zero(t, testing.AllocsPerRun(100, func() { s.Shard("user:12345") }))
}

// broken is a store that fails, and can do nothing else.
type broken struct{ err error }

func (b broken) Sync(context.Context, backend.Statement) (backend.Reply, error) {
	return backend.Reply{}, b.err
}
func (b broken) Check(context.Context, string, backend.Limit) (backend.State, error) {
	return backend.State{}, b.err
}
func (b broken) Reset(context.Context, string, backend.Limit) (backend.Window, error) {
	return backend.Window{}, b.err
}

// calls makes one call of each kind and returns the errors by operation.
func calls(ctx context.Context, s *sharding.Store, key string) map[string]error {
	_, sync := s.Sync(ctx, backend.Statement{Key: key, Limit: limit10, Need: 1})
	_, rolling := s.Sync(ctx, backend.Statement{Key: key, Limit: limit10.Rolling(), Need: 1})
	_, check := s.Check(ctx, key, limit10)
	_, reset := s.Reset(ctx, key, limit10)
	_, inspect := s.Inspect(ctx, key)
	return map[string]error{"sync": sync, "sync of a rolling limit": rolling, "check": check, "reset": reset, "inspect": inspect}
}

// TestFailure: a shard's failure names the shard, and no key of it is served by another, where it would find a second limit.
func TestFailure(t *testing.T) {
	well := memstore.New()
	cause := errors.New("cause")
	for _, row := range []struct {
		what, text string
		err        error
	}{
		{"a store's failure", `reservoir: op: store unavailable: shard "a": cause`,
			&backend.Error{Op: "op", Class: backend.Unavailable, Err: cause}},
		{"a decorator's", `reservoir: op: store unavailable: shard "a": breaker: reservoir: op: store unavailable: cause`,
			fmt.Errorf("breaker: %w", &backend.Error{Op: "op", Class: backend.Unavailable, Err: cause})},
	} {
		s, err := sharding.New(map[string]backend.Store{"a": broken{row.err}, "b": well})
		require.NoError(t, err)
		require.Equal(t, "a", s.Shard("canary 0"))
		for op, err := range calls(t.Context(), s, "canary 0") {
			var failure *backend.Error
			require.ErrorAs(t, err, &failure, op)
			require.NotContains(t, err.Error(), "canary")
			require.Contains(t, err.Error(), `shard "a"`)
			if op == "inspect" {
				require.Equal(t, backend.Rejected, failure.Class)
				require.ErrorContains(t, err, "no backend.Inspector")
				continue
			}
			require.ErrorIs(t, err, cause)
			require.Equal(t, backend.Unavailable, failure.Class)
			require.EqualError(t, err, row.text)
		}
	}
	there, err := well.Inspect(t.Context(), "canary 0")
	require.NoError(t, err)
	require.Empty(t, there)
	// A faulty request is not the shard's fault.
	s, err := sharding.New(map[string]backend.Store{"a": memstore.New()})
	require.NoError(t, err)
	for op, err := range calls(t.Context(), s, "") {
		require.ErrorIs(t, err, backend.ErrKey, op)
		require.False(t, strings.Contains(err.Error(), "shard"), op)
	}
}

// plain hides that a store is a Listener.
type plain struct{ backend.Store }

// TestListen: messages come from every shard, and a key of a shard that sends none says so.
func TestListen(t *testing.T) {
	s, err := sharding.New(map[string]backend.Store{"a": memstore.New(), "b": memstore.New(), "mute": plain{memstore.New()}})
	require.NoError(t, err)
	heard := make(chan backend.Message, 10)
	sub := s.Listen("p", func(m backend.Message) { heard <- m })
	of := make(map[string]string)
	for i := 0; len(of) < 3; i++ {
		of[s.Shard(fmt.Sprint(i))] = fmt.Sprint(i)
	}
	for shard, key := range of {
		m := backend.Message{Kind: backend.Changed, Key: key}
		if shard == "mute" {
			for _, err := range []error{sub.Err(key), s.Publish(t.Context(), m)} {
				require.ErrorIs(t, err, backend.ErrNoListener)
				require.ErrorContains(t, err, `shard "mute"`)
			}
			continue
		}
		require.NoError(t, sub.Err(key))
		require.NoError(t, s.Publish(t.Context(), m))
		require.Equal(t, m, <-heard)
	}
	sub.Close()
	require.NoError(t, s.Publish(t.Context(), backend.Message{Key: of["a"]}))
	require.ErrorIs(t, s.Publish(t.Context(), backend.Message{}), backend.ErrKey)
	require.Empty(t, heard)
}

func BenchmarkShard(b *testing.B) {
	for _, n := range []int{1, 4, 16, 64} {
		b.Run(fmt.Sprintf("shards=%d", n), func(b *testing.B) {
			s := over(b, numbered(n)...)
			b.ReportAllocs()
			for b.Loop() {
				s.Shard("user:123456789")
			}
		})
	}
}
