package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestHalfPair: Redis evicts keys one by one. A counter without its count or its end is what its ledger says, to every
// script; without a ledger it is over.
func TestHalfPair(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	const count, end, own = "{k}:60s", "{k}:60s:exp", "{k}:60s:own"
	for _, row := range []struct {
		lost []string
		used int64
	}{
		{[]string{count}, 4}, // charged without an account, 2 are lost
		{[]string{end}, 6},
		{[]string{count, end}, 4},
		{[]string{own}, 6},
		{[]string{count, own}, 0},
		{[]string{end, own}, 0},
	} {
		for _, then := range []string{"check", "charge", "state", "newcomer"} {
			t.Run(then, func(t *testing.T) {
				ctx := t.Context()
				require.NoError(t, client.FlushDB(ctx).Err())
				h := newHolder(s, "a.1", "k", limit10)
				held, err := h.ask(ctx, 4, 0)
				require.NoError(t, err)
				take(t, s, "k", 2)
				require.EqualValues(t, len(row.lost), client.Del(ctx, row.lost...).Val())
				switch then {
				case "check":
					state, err := s.Check(ctx, "k", limit10)
					require.NoError(t, err)
					require.Equal(t, 10-row.used, state.Remaining)
					if row.used > 0 && len(row.lost) == 1 && row.lost[0] != own {
						require.Equal(t, held.Window, state.Window)
					}
				case "charge":
					before := time.Now()
					r := take(t, s, "k", 1)
					require.Equal(t, row.used+1, r.Used)
					require.WithinRange(t, r.Window.Time(), before.Add(time.Minute-time.Second), time.Now().Add(time.Minute+time.Second))
					whole(t, client, r.Window)
				case "state": // the holder knows the window: never less than what it was charged
					r, err := h.ask(ctx, 1, 0)
					require.NoError(t, err)
					require.Equal(t, held.Window, r.Window)
					require.Equal(t, max(row.used, 4)+1, r.Used)
					require.EqualValues(t, 5, r.Mine)
					whole(t, client, r.Window)
				case "newcomer":
					r, err := newHolder(s, "b.1", "k", limit10).ask(ctx, 1, 0)
					require.NoError(t, err)
					require.Equal(t, row.used+1, r.Used)
					whole(t, client, r.Window)
				}
			})
		}
	}
}

// TestHalfPairBeforeACharge: a charge without an account opens a period of the calendar again. What a client was
// charged before is charged to that window at its next statement, also if it was lost again.
func TestHalfPairBeforeACharge(t *testing.T) {
	client := redistest.Start(t).Client()
	s, ctx := redisstore.New(client), t.Context()
	day := backend.Limit{Tokens: 100, Window: 24 * time.Hour, Calendar: backend.Calendar{Period: backend.Day}}
	begin, end := time.Now().Add(-12*time.Hour).UnixMilli(), time.Now().Add(12*time.Hour).UnixMilli()
	const count = "{k}:day@UTC"
	for _, lost := range [][]string{{count, count + ":own"}, {count + ":exp", count + ":own"}} {
		require.NoError(t, client.FlushDB(ctx).Err())
		h := newHolder(s, "a.1", "k", day)
		h.next.Begin, h.next.End = begin, end
		r, err := h.ask(ctx, 90, 0)
		require.NoError(t, err)
		require.EqualValues(t, 90, r.Grant)
		for i := range int64(3) {
			require.EqualValues(t, 2, client.Del(ctx, lost...).Val())
			q := backend.Statement{Key: "k", Limit: day, Need: 1, Begin: begin, End: end}
			charged, err := s.Sync(ctx, q)
			require.NoError(t, err)
			require.EqualValues(t, 1, charged.Used, "%d", i)
			require.Equal(t, r.Window, charged.Window)
			r, err = h.ask(ctx, 0, 0)
			require.NoError(t, err)
			require.Equal(t, charged.Window, r.Window)
			require.EqualValues(t, 90, r.Mine)
			require.GreaterOrEqual(t, r.Used, int64(90), "what its own charge claims may be the other's")
		}
	}
}

// TestCountOfAWindowThatIsOver: an end alone that is over is no loss. The next window ends at a whole second.
func TestCountOfAWindowThatIsOver(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	require.NoError(t, client.Set(t.Context(), "{k}:60s:exp", time.Now().Unix()-2, time.Minute).Err())
	require.Zero(t, take(t, s, "k", 1).Window.End%1000)
}

// whole expects both halves of the window, and that they expire together.
func whole(t *testing.T, client *redis.Client, w backend.Window) {
	t.Helper()
	require.Equal(t, seconds(w), client.Get(t.Context(), "{k}:60s:exp").Val())
	for _, key := range []string{"{k}:60s", "{k}:60s:exp"} {
		require.Equal(t, w.End+61_000, client.PExpireTime(t.Context(), key).Val().Milliseconds())
	}
}
