package redisstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// TestLedgerOfManyProcesses: 10,000 processes have used a key in a window, and a few use it in
// the next. Their fields go at once, and none of them counts.
func TestLedgerOfManyProcesses(t *testing.T) {
	const processes, few = 10_000, 20
	minute := backend.Limit{Tokens: 1_000_000, Window: time.Minute}
	base := time.Now().Add(time.Hour).Truncate(time.Second)
	for what, next := range map[string]func(t *testing.T, s *redisstore.Store) time.Duration{
		"next window": func(*testing.T, *redisstore.Store) time.Duration { return time.Minute + 100*time.Millisecond },
		"reset": func(t *testing.T, s *redisstore.Store) time.Duration {
			_, err := s.Reset(storeclock.With(t.Context(), base.Add(time.Second)), "k", minute)
			require.NoError(t, err)
			return time.Second
		},
		"charged first": func(t *testing.T, s *redisstore.Store) time.Duration {
			_, err := charge(storeclock.With(t.Context(), base.Add(time.Minute+100*time.Millisecond)), s, "k", minute, 1)
			require.NoError(t, err)
			return time.Minute + 200*time.Millisecond
		},
		"clock stepped back": func(*testing.T, *redisstore.Store) time.Duration { return -10 * time.Minute },
	} {
		t.Run(what, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			s := redisstore.New(client)
			ask := func(at time.Duration, h *holder) backend.Reply {
				r, err := h.ask(storeclock.With(t.Context(), base.Add(at)), 2, 0)
				require.NoError(t, err)
				require.EqualValues(t, 2, r.Grant)
				return r
			}
			old := newHolder(s, "gone7", "k", minute)
			w := ask(0, old).Window
			fields := make([]any, 0, 2*processes)
			for i := range processes {
				if i != 7 {
					fields = append(fields, fmt.Sprint("gone", i), fmt.Sprintf("%d 1 1 2", w.End))
				}
			}
			for part := range slices.Chunk(fields, 10_000) {
				require.NoError(t, client.HSet(t.Context(), "{k}:60s:own", part...).Err())
			}
			at := next(t, s)
			server.ResetStats()
			for i := range few {
				require.EqualValues(t, i+1, ask(at, newHolder(s, fmt.Sprint("new", i), "k", minute)).Clients)
			}
			require.Zero(t, server.Calls("hkeys", "hgetall", "hscan", "del", "hdel", "hrandfield"))
			require.EqualValues(t, 1, server.Calls("unlink"))
			require.EqualValues(t, few+1, client.HLen(t.Context(), "{k}:60s:own").Val(), "with the head")
			old.next.Runs = false
			require.EqualValues(t, 2, ask(at, old).Mine, "what it was granted is of the old window")
			contents, err := s.Inspect(storeclock.With(t.Context(), base.Add(at)), "k")
			require.NoError(t, err)
			require.Len(t, contents[0].Clients, few+1)
		})
	}
}
