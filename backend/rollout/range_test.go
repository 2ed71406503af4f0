package rollout_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/backend/rollout"
)

// TestPlaces: where keys stand, to a percent. A change of this table moves the
// limits of users while processes of two versions run.
func TestPlaces(t *testing.T) {
	s := open(t, memstore.New(), memstore.New(), 0, 0)
	for key, want := range map[string]float64{"a": 1, "b": 24, "user:42": 83, "x": 17, "": 95, "\x00\xff": 65, "日本": 71} {
		low := 0.0
		for low < 100 {
			require.NoError(t, s.SetPercent(low+1, low+1))
			if s.Shard(key) == "new" {
				break
			}
			low++
		}
		require.Equal(t, want, low, "%q", key)
	}
}

// The share is what it says, and a larger one has the keys of a smaller one.
func TestShare(t *testing.T) {
	const keys = 10_000
	s := open(t, memstore.New(), memstore.New(), 0, 0)
	was := map[string]bool{}
	for _, percent := range []float64{0, 1, 25, 50, 100} {
		require.NoError(t, s.SetPercent(percent, percent))
		n := 0.0
		for i := range keys {
			key := fmt.Sprint("user:", i)
			in := s.Shard(key) == "new"
			require.True(t, in || !was[key])
			was[key] = in
			if in {
				n++
			}
		}
		require.InDelta(t, percent/100*keys, n, 6*math.Sqrt(keys)/2)
	}
}

func TestFaults(t *testing.T) {
	s := open(t, memstore.New(), memstore.New(), 10, 20)
	for _, bad := range [][2]float64{{-1, 50}, {50, 101}, {51, 50}, {math.NaN(), 50}, {0, math.NaN()}, {math.Inf(-1), 0}} {
		require.ErrorContains(t, s.SetPercent(bad[0], bad[1]), "want 0 <= low <= high <= 100")
		_, err := rollout.New(memstore.New(), memstore.New(), bad[0], bad[1])
		require.Error(t, err)
	}
	low, high := s.Percent()
	require.Equal(t, [2]float64{10, 20}, [2]float64{low, high}, "nothing has changed")
	_, err := rollout.New(memstore.New(), nil, 0, 0)
	require.ErrorContains(t, err, "no store")
	_, err = rollout.New(redisstore.New(nil), memstore.New(), 0, 0)
	require.ErrorContains(t, err, "reservoir: open")
	for _, at := range [][2]float64{{0, 0}, {0, 100}} {
		require.NoError(t, s.SetPercent(at[0], at[1]))
		_, err = s.Take(t.Context(), backend.TakeRequest{Key: "", Limit: limit10, Tokens: 1})
		require.ErrorIs(t, err, backend.ErrKey)
		_, err = s.Sync(t.Context(), backend.SyncRequest{Key: "k", Limit: limit10})
		require.ErrorIs(t, err, backend.ErrKey)
		_, err = s.Check(t.Context(), "k", backend.Limit{})
		require.ErrorIs(t, err, backend.ErrLimit)
		_, err = s.Refund(t.Context(), backend.RefundRequest{Key: "k", Client: "r", Window: 1})
		require.ErrorIs(t, err, backend.ErrTokens)
	}
}

// When a key is in which stores, by the calls they get: a row a path, a step a
// second apart, and how long after the last step the key is still in both.
func TestLeaving(t *testing.T) {
	const minute = time.Minute
	old, both, new := [2]float64{0, 0}, [2]float64{0, 100}, [2]float64{100, 100}
	for _, row := range []struct {
		what  string
		steps [][2]float64
		long  time.Duration // 0 = it has left at once
	}{
		{"there", [][2]float64{old, both, new}, minute},
		{"back", [][2]float64{new, both, old}, minute},
		{"tried, and taken back", [][2]float64{old, both, old}, 0},
		{"back, and there again", [][2]float64{new, both, new}, 0},
		{"there and back", [][2]float64{old, both, new, both, old}, minute},
		{"there, and there again in a hurry", [][2]float64{old, both, new, both, new}, minute - 2*time.Second},
		{"a step left out", [][2]float64{old, new}, minute},
		{"in a process that began in between", [][2]float64{both, new}, minute},
		{"in a process that begins", [][2]float64{new}, 0},
		{"other keys move", [][2]float64{old, both, new, {99, 99}, {98, 100}}, minute},
	} {
		t.Run(row.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := newFar(0), newFar(0)
				s := open(t, a, b, row.steps[0][0], row.steps[0][1])
				for _, step := range row.steps[1:] {
					time.Sleep(time.Second)
					require.NoError(t, s.SetPercent(step[0], step[1]))
				}
				at := time.Now()
				for time.Since(at) < 2*minute {
					a.calls.Store(0)
					b.calls.Store(0)
					passed := time.Since(at)
					_, err := s.Check(t.Context(), "k", limit10)
					require.NoError(t, err)
					inBoth := a.calls.Load() > 0 && b.calls.Load() > 0
					switch {
					case row.long > 0 && passed <= row.long:
						require.True(t, inBoth, passed)
					case row.long == 0 || passed > row.long+2*time.Second:
						require.False(t, inBoth, passed)
						require.Equal(t, row.steps[len(row.steps)-1] != old, b.calls.Load() > 0)
					}
					time.Sleep(time.Second)
				}
			})
		})
	}
}
