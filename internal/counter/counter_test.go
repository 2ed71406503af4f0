package counter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// at is an instant after 10:00:00, in Unix us.
func at(d time.Duration) int64 { return 1_764_000_000_000_000 + d.Microseconds() }

// ms is the same instant in Unix ms.
func ms(d time.Duration) int64 { return at(d) / 1000 }

// TestOpening: where a window ends.
func TestOpening(t *testing.T) {
	const s, us = time.Second, time.Microsecond
	for _, row := range []struct {
		what        string
		now, length time.Duration
		end, want   time.Duration // end: of the client's calendar; 0 = none
	}{
		{"a whole second", 7 * s, 60 * s, 0, 67 * s},
		{"rounded down", 7*s + 999*time.Millisecond, 60 * s, 0, 67 * s},
		{"also a window of a second", 7*s + 999*time.Millisecond, s, 0, 8 * s},
		{"another length is not, but for a part of a millisecond", 7*s + us, 1500 * time.Millisecond, 0, 8501 * time.Millisecond},
		{"by the calendar", 7 * s, 60 * s, 40 * s, 40 * s},
		{"by the calendar, to the millisecond", 7 * s, 60 * s, 40*s + 3*time.Millisecond, 40*s + 3*time.Millisecond},
		{"as late as clocks may differ", 7 * s, 60 * s, 68 * s, 68 * s},
		{"too late to be true: the one before", 7 * s, 60 * s, 68*s + time.Millisecond, 8*s + time.Millisecond},
		{"as late as clocks may differ, and three windows more", 7 * s, 60 * s, 248 * s, 68 * s},
		{"later than that: four before", 7 * s, 60 * s, 248*s + time.Millisecond, 8*s + time.Millisecond},
		{"the clock is five seconds ahead at midnight", 86395 * s, 86400 * s, 2 * 86400 * s, 86400 * s},
		{"and as much behind", 86405 * s, 86400 * s, 86400 * s, 2 * 86400 * s},
		{"it ends now", 7 * s, 60 * s, 7 * s, 67 * s},
		{"it has just ended", 7 * s, 60 * s, 7*s - time.Millisecond, 67*s - time.Millisecond},
		{"it ended three windows ago", 197 * s, 60 * s, 7 * s, 247 * s},
	} {
		end := backend.Window(0)
		if row.end != 0 {
			end = backend.Window(ms(row.end))
		}
		require.Equal(t, ms(row.want), opening(at(row.now), row.length.Milliseconds(), end), row.what)
	}
}

// TestClockBack: the end of a window moves only when the clock has stepped back,
// by what the window's own length says, whoever asks.
func TestClockBack(t *testing.T) {
	hour := backend.Limit{Tokens: 10, Window: time.Hour}
	minute := backend.Limit{Tokens: 10, Window: time.Minute}
	var c Counter
	require.True(t, c.Take(backend.TakeRequest{Limit: hour, Tokens: 10}, at(0)).Allowed)
	before := c

	reply := c.Take(backend.TakeRequest{Limit: minute, Tokens: 1}, at(time.Second))
	require.Equal(t, backend.TakeReply{State: backend.State{
		Window: backend.Window(ms(time.Hour)), Left: time.Hour - time.Second, Length: time.Hour, Conflict: true,
	}}, reply)
	require.Equal(t, before, c, "a shorter window moves nothing")

	refused := c.Take(backend.TakeRequest{Limit: hour, Tokens: 1}, at(-time.Minute))
	require.EqualValues(t, ms(59*time.Minute), refused.Window, "it tells where the end would be")
	require.Equal(t, before, c, "and writes nothing")

	hour.Tokens = 11
	require.True(t, c.Take(backend.TakeRequest{Limit: hour, Tokens: 1}, at(-time.Minute)).Allowed)
	require.Equal(t, ms(59*time.Minute), c.stop)
	require.EqualValues(t, 11, c.used)
}
