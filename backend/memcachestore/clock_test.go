package memcachestore

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// TestClocksApart: two processes, of which one is ahead, call every 0.1 s for five
// windows. Up to a minute they share them; the key runs by the clock that is ahead.
func TestClocksApart(t *testing.T) {
	addr := start(t).Addr()
	l := backend.Limit{Tokens: 10, Window: 5 * time.Second}
	for _, ahead := range []time.Duration{0, time.Millisecond, 900 * time.Millisecond, 4 * time.Second, 5 * time.Second, 10 * time.Second, maxAhead} {
		t.Run(ahead.String(), func(t *testing.T) {
			now := time.Now().Truncate(time.Second) // as windows end
			slow, fast := over(t, addr), over(t, addr)
			slow.now = func() time.Time { return now }
			fast.now = func() time.Time { return now.Add(ahead) }
			allowed := make(map[backend.Window]int)
			for range 250 {
				for _, s := range []*Store{slow, fast} {
					r, err := s.Take(t.Context(), backend.TakeRequest{Key: ahead.String(), Limit: l, Tokens: 1})
					require.NoError(t, err)
					require.LessOrEqual(t, r.Left, l.Window+time.Millisecond)
					if r.Allowed {
						allowed[r.Window]++
					}
				}
				now = now.Add(100 * time.Millisecond)
			}
			for w, n := range allowed {
				require.LessOrEqual(t, n, 10, "in %v", w)
			}
			require.LessOrEqual(t, len(allowed), 6, "five, and the slow one's first")
		})
	}
}

// TestClockFarAhead: a clock that is wrong by an hour does not keep a window open for
// an hour: the others do not believe it.
func TestClockFarAhead(t *testing.T) {
	addr := start(t).Addr()
	slow, wrong := over(t, addr), over(t, addr)
	wrong.now = func() time.Time { return time.Now().Add(time.Hour) }
	take(t, wrong, "k", 4)
	r := take(t, slow, "k", 1)
	require.LessOrEqual(t, r.Left, limit10.Window+time.Millisecond)
	require.WithinRange(t, r.Window.Time(), time.Now(), time.Now().Add(limit10.Window+time.Second))
	require.EqualValues(t, 5, r.Remaining, "what was charged stays charged")
}

// TestSilence: when the process that was ahead falls silent, its last window lasts
// longer by as much, and no more.
func TestSilence(t *testing.T) {
	addr := start(t).Addr()
	now := time.Now().Truncate(time.Second) // as windows end
	slow, fast := over(t, addr), over(t, addr)
	slow.now = func() time.Time { return now }
	fast.now = func() time.Time { return now.Add(20 * time.Second) }
	start := now
	end := take(t, fast, "k", 10).Window
	for _, row := range []struct {
		at, left time.Duration // by the slow clock
	}{
		{0, 60 * time.Second}, {19 * time.Second, 60 * time.Second}, {21 * time.Second, 59 * time.Second}, {79 * time.Second, time.Second},
	} {
		now = start.Add(row.at)
		r := take(t, slow, "k", 1)
		require.False(t, r.Allowed)
		require.Equal(t, end, r.Window)
		require.Equal(t, row.left, r.Left.Round(time.Second), "at %v", row.at)
	}
	now = start.Add(81 * time.Second)
	require.True(t, take(t, slow, "k", 1).Allowed)
}

// TestWrittenAt: what the flags say of the time of a write.
func TestWrittenAt(t *testing.T) {
	for left, want := range map[time.Duration]uint32{
		0: 0, time.Microsecond: 1, time.Millisecond: 1, time.Minute: 60_000,
		50 * 24 * time.Hour: math.MaxUint32, backend.MaxWindow: math.MaxUint32,
	} {
		require.Equal(t, want, leftAt(left), "%v", left)
	}
	addr := start(t).Addr()
	s := over(t, addr)
	for _, window := range []time.Duration{math.MaxUint32*time.Millisecond - time.Second, math.MaxUint32*time.Millisecond + 30*time.Second, backend.MaxWindow} {
		r := backend.TakeRequest{Key: window.String(), Limit: backend.Limit{Tokens: 10, Window: window}, Tokens: 1}
		_, err := s.Take(t.Context(), r)
		require.NoError(t, err)
		again, err := s.Take(t.Context(), r)
		require.NoError(t, err)
		require.WithinDuration(t, again.Window.Time(), time.Now().Add(again.Left), 10*time.Second, "its time is our own")
	}
}
