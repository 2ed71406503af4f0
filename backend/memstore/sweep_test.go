package memstore

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// held is how many counters the store has in memory.
func (s *Store) held() (n int) {
	for i := range s.shard {
		s.shard[i].mu.Lock()
		n += len(s.shard[i].held)
		s.shard[i].mu.Unlock()
	}
	return n
}

// need is a statement without a client.
func need(key string, l backend.Limit) backend.Statement {
	return backend.Statement{Key: key, Limit: l, Need: 1}
}

// both runs a test with each kind of limit.
func both(t *testing.T, test func(t *testing.T, limit backend.Limit)) {
	limit := backend.Limit{Tokens: 10, Window: time.Second}
	t.Run("fixed", func(t *testing.T) { test(t, limit) })
	t.Run("rolling", func(t *testing.T) { test(t, limit.Rolling()) })
}

// TestSweep: keys that come once and never again do not fill the memory, with an account and without.
func TestSweep(t *testing.T) { both(t, testSweep) }

func testSweep(t *testing.T, limit backend.Limit) {
	s := New()
	base := time.Now().Truncate(time.Second) // as windows end
	take := func(i int, at time.Duration) backend.Reply {
		q := need(fmt.Sprint(i), limit)
		if i%2 == 0 {
			q.Client, q.Life, q.Seq, q.Want = "p.1", 1, int64(at), 1
		}
		r, err := s.Sync(storeclock.With(t.Context(), base.Add(at)), q)
		require.NoError(t, err)
		return r
	}
	const open, keys = 1000, 80_000 // 1000 keys a second, each once; more than are ever held
	for i := range keys {
		take(i, time.Duration(i+1)*time.Second/open)
		if i%1000 == 0 {
			require.LessOrEqual(t, s.held(), 2*shards*minSweep)
		}
	}
	// None that is open is forgotten.
	for i := keys - open; i < keys; i++ {
		if i%2 == 1 {
			require.EqualValues(t, 8, take(i, keys*time.Second/open-time.Second/2-time.Millisecond*400).Remaining)
		}
	}
}

// TestSweepKeepsLedgers: an account and a generation outlive the window, so that a late copy of a statement charges
// nothing, what a Reset voided stays void, and a hold lasts.
func TestSweepKeepsLedgers(t *testing.T) { both(t, testSweepKeepsLedgers) }

func testSweepKeepsLedgers(t *testing.T, limit backend.Limit) {
	s, base := New(), time.Now().Truncate(time.Second)
	at := func(d time.Duration) context.Context { return storeclock.With(t.Context(), base.Add(d)) }
	crowd := func(d time.Duration) {
		for i := range 2 * shards * minSweep {
			_, err := s.Sync(at(d), need(fmt.Sprint(i, d), limit))
			require.NoError(t, err)
		}
	}
	q := need("k", limit)
	q.Client, q.Life, q.Seq, q.Want = "p.1", 1, 1, 1
	r, err := s.Sync(at(0), q)
	require.NoError(t, err)
	_, err = s.Reset(at(0), "reset", limit)
	require.NoError(t, err)
	for _, key := range []string{"held", "held in a window"} {
		if key != "held" {
			_, err = s.Sync(at(0), need(key, limit))
			require.NoError(t, err)
		}
		_, err = s.Sync(at(0), backend.Statement{Key: key, Limit: limit, Hold: 5 * time.Second})
		require.NoError(t, err)
	}

	crowd(2500 * time.Millisecond) // a window, a second, and a window more is kept
	late, err := s.Sync(at(2500*time.Millisecond), q)
	require.NoError(t, err)
	require.True(t, late.Void)
	for d := 3 * time.Second; d < 6*time.Second; d += 100 * time.Millisecond {
		crowd(d)
		for _, key := range []string{"held", "held in a window"} {
			state, err := s.Check(at(d), key, limit)
			require.NoError(t, err)
			require.Equal(t, max(5*time.Second-d, 0), state.Held, key)
		}
	}
	late, err = s.Sync(at(6*time.Second), q)
	require.NoError(t, err)
	require.False(t, late.Void, "nothing is kept for ever")
	require.NotEqual(t, r.Window, late.Window)

	_, err = s.Reset(at(6*time.Second), "reset", limit)
	require.NoError(t, err)
	crowd(7900 * time.Millisecond)
	q.Key = "reset"
	r, err = s.Sync(at(7900*time.Millisecond), q)
	require.NoError(t, err)
	require.Equal(t, base.Add(6*time.Second).UnixMilli(), r.Window.Gen)
}

// TestLooksKeepNothing: a key without an open window takes no memory.
func TestLooksKeepNothing(t *testing.T) {
	s := New()
	limit := backend.Limit{Tokens: 10, Window: time.Second}
	for i := range 1000 {
		key := fmt.Sprint(i)
		for _, l := range []backend.Limit{limit, limit.Rolling()} {
			_, err := s.Check(t.Context(), key, l)
			require.NoError(t, err)
		}
		_, err := s.Sync(t.Context(), backend.Statement{Key: key, Window: backend.Window{End: 1}, Change: 1, Limit: limit})
		require.NoError(t, err)
		_, err = s.Sync(t.Context(), backend.Statement{Key: key, Need: 11, Limit: limit})
		require.NoError(t, err)
		_, err = s.Sync(t.Context(), backend.Statement{Key: key, Client: "a", Life: 1, Seq: 1, Limit: limit})
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
		_, err := s.Sync(t.Context(), need(line[:4], backend.Limit{Tokens: 10, Window: time.Hour}))
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
	r, err := s.Sync(t.Context(), need("k", limit))
	require.NoError(t, err)
	require.WithinRange(t, r.Window.Time(), before.Truncate(time.Second).Add(time.Minute), time.Now().Add(time.Minute))
}

// BenchmarkSync is one call, without a client and with one.
func BenchmarkSync(b *testing.B) {
	limit := backend.Limit{Tokens: backend.MaxTokens, Window: time.Hour}
	for _, client := range []string{"", "p.1"} {
		b.Run("client="+client, func(b *testing.B) {
			s, ctx, q := New(), b.Context(), need("k", limit)
			if q.Client = client; client != "" {
				q.Life, q.Want, q.Exact = 1, 1, true
			}
			b.ReportAllocs()
			for b.Loop() {
				q.Seq++
				r, err := s.Sync(ctx, q)
				if err != nil || r.Grant != 1 {
					b.Fatal(r, err)
				}
				q.Window, q.Mine, q.Used, q.Runs = r.Window, r.Mine, r.Used, true
			}
		})
	}
}

// BenchmarkMemory reports the bytes that a counter takes, without an account and with one.
func BenchmarkMemory(b *testing.B) {
	limit := backend.Limit{Tokens: 10, Window: time.Hour}
	for _, client := range []string{"", "p.1"} {
		b.Run("client="+client, func(b *testing.B) {
			const keys = 100_000
			for b.Loop() {
				s, before := New(), heap()
				for i := range keys {
					q := need(fmt.Sprintf("user:%015d", i), limit)
					if q.Client = client; client != "" {
						q.Life, q.Seq, q.Want = 1, 1, 1
					}
					_, err := s.Sync(b.Context(), q)
					require.NoError(b, err)
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
