package memstore

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// held is how many keys the store has in memory.
func (s *Store) held() (n int) {
	for i := range s.shard {
		s.shard[i].mu.Lock()
		n += len(s.shard[i].fixed.keys)
		s.shard[i].mu.Unlock()
	}
	return n
}

// TestSweep: keys that come once and never again do not fill the memory.
func TestSweep(t *testing.T) {
	s := New()
	base := time.Now().Truncate(time.Second) // as windows end
	limit := backend.Limit{Tokens: 10, Window: time.Second}
	take := func(i int, at time.Duration) backend.TakeReply {
		r, err := s.Take(storeclock.With(t.Context(), base.Add(at)), backend.TakeRequest{Key: fmt.Sprint(i), Limit: limit, Tokens: 1})
		require.NoError(t, err)
		return r
	}
	const open, keys = 1000, 80_000 // 1000 keys a second, each once; more than are ever held
	for i := range keys {
		take(i, time.Duration(i)*time.Second/open)
		if i%1000 == 0 {
			require.LessOrEqual(t, s.held(), 2*shards*minSweep)
		}
	}
	// None that is open is forgotten.
	for i := keys - open; i < keys; i++ {
		require.EqualValues(t, 8, take(i, keys*time.Second/open-time.Second/2-time.Millisecond*400).Remaining)
	}
}

// TestLooksKeepNothing: a key without an open window takes no memory.
func TestLooksKeepNothing(t *testing.T) {
	s := New()
	limit := backend.Limit{Tokens: 10, Window: time.Second}
	for i := range 1000 {
		key := fmt.Sprint(i)
		_, err := s.Check(t.Context(), key, limit)
		require.NoError(t, err)
		_, err = s.Settle(t.Context(), backend.SettleRequest{Key: key, Window: 1, Tokens: 1, Limit: 1})
		require.NoError(t, err)
		_, err = s.Sync(t.Context(), backend.SyncRequest{Key: key, Client: "a", Limit: limit})
		require.NoError(t, err)
		_, err = s.Inspect(t.Context(), key)
		require.NoError(t, err)
	}
	require.Zero(t, s.held())
}

// TestKeysOfLongLines: a key that is cut out of a longer string does not keep that in memory.
func TestKeysOfLongLines(t *testing.T) {
	const lines, length = 64, 1 << 20
	s, before := New(), heap()
	for i := range lines {
		line := fmt.Sprintf("%4d", i) + strings.Repeat(" ", length)
		_, err := s.Take(t.Context(), backend.TakeRequest{Key: line[:4], Limit: backend.Limit{Tokens: 10, Window: time.Hour}, Tokens: 1})
		require.NoError(t, err)
	}
	require.Less(t, heap()-before, int64(lines*length/4))
	require.Equal(t, lines, s.held())
}

// TestOwnClock: without a test's clock the process' own rules.
func TestOwnClock(t *testing.T) {
	s := New()
	limit := backend.Limit{Tokens: 10, Window: time.Minute}
	before := time.Now()
	r, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit, Tokens: 1})
	require.NoError(t, err)
	require.WithinRange(t, r.Window.Time(), before.Truncate(time.Second).Add(time.Minute), time.Now().Add(time.Minute))
}

func BenchmarkTake(b *testing.B) {
	s := New()
	r := backend.TakeRequest{Key: "k", Limit: backend.Limit{Tokens: backend.MaxTokens, Window: time.Hour}, Tokens: 1}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Take(ctx, r); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMemory reports the bytes that a key takes, after a direct call or a statement.
func BenchmarkMemory(b *testing.B) {
	limit := backend.Limit{Tokens: 10, Window: time.Hour}
	for name, call := range map[string]func(s *Store, key string) error{
		"take": func(s *Store, key string) error {
			_, err := s.Take(b.Context(), backend.TakeRequest{Key: key, Limit: limit, Tokens: 1})
			return err
		},
		"sync": func(s *Store, key string) error {
			_, err := s.Sync(b.Context(), backend.SyncRequest{Key: key, Client: "c", Limit: limit, Want: 1})
			return err
		},
	} {
		b.Run("op="+name, func(b *testing.B) {
			const keys = 100_000
			for b.Loop() {
				s, before := New(), heap()
				for i := range keys {
					require.NoError(b, call(s, fmt.Sprintf("user:%015d", i)))
				}
				b.ReportMetric(float64(heap()-before)/keys, "B/key")
				runtime.KeepAlive(s)
			}
		})
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
