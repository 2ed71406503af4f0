package sim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// small is a replay of a few windows with one and a half times the demand.
func small(t *testing.T, name string, s Setting) (Traffic, *Replay) {
	t.Helper()
	traffic := Shape{Tokens: 1, Rate: 15 * 1000, Keys: 2, Processes: 3, Length: 200 * time.Millisecond, Seed: 1}.Traffic()
	p, err := Policies([]string{name}, s.Limit.Tokens)
	require.NoError(t, err)
	return traffic, &Replay{Traffic: traffic, Policy: p[0], Setting: s, Store: memstore.New()}
}

var adaptive = Policy{Name: "adaptive", Option: reservoir.WithBatch(1, 0)}

// requireSums checks what holds of every outcome.
func requireSums(t *testing.T, traffic Traffic, o Outcome) {
	t.Helper()
	require.EqualValues(t, len(traffic.Requests), o.Requests)
	require.Equal(t, o.Requests, o.Admitted+o.Refused+o.Errors)
	require.LessOrEqual(t, o.Needless, o.Refused)
	require.LessOrEqual(t, o.P50, o.P99)
	require.Zero(t, o.Over)
}

func TestReplay(t *testing.T) {
	s := Setting{Limit: reservoir.Limit{Tokens: 500, Window: 100 * time.Millisecond}, Delay: 100 * time.Microsecond}
	calls := map[string]int64{}
	for _, name := range []string{"direct", "5", "ladder", "adaptive"} {
		traffic, r := small(t, name, s)
		o, err := r.Run(t.Context())
		require.NoError(t, err, name)
		requireSums(t, traffic, o)
		require.Zero(t, o.Errors)
		calls[name] = o.StoreCalls
		if name == "direct" {
			require.InEpsilon(t, s.Delay, o.P50, 0.01, "a call takes its delay")
			require.LessOrEqual(t, o.P99, 2*s.Delay+s.Delay/50, "and who comes meanwhile shares the next one")
			require.LessOrEqual(t, o.StoreCalls, o.Requests, "a refusal from memory may send a probe")
		}
	}
	require.Less(t, calls["adaptive"], calls["direct"])
	require.Less(t, calls["5"], calls["direct"])
}

func TestReplayEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, r := small(t, "adaptive", Setting{Limit: reservoir.PerHour(10)})
	_, err := r.Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestReplayThatFailsIsAnError(t *testing.T) {
	r := &Replay{Traffic: Shape{Tokens: 1, Rate: 100, Keys: 1, Processes: 2, Length: 100 * time.Millisecond, Seed: 1}.Traffic(),
		Policy: adaptive, Setting: Setting{Limit: reservoir.PerHour(10)}, Store: &scripted{}}
	o, err := r.Run(t.Context())
	require.ErrorContains(t, err, " requests failed, the first with: ")
	require.Equal(t, o.Requests, o.Errors)
}

func TestReplayThatGoesOverTheLimitIsAnError(t *testing.T) {
	twice := Policy{Option: reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.PerHour(20) })}
	r := &Replay{Traffic: Shape{Tokens: 1, Rate: 1000, Keys: 1, Processes: 2, Length: 100 * time.Millisecond, Seed: 1}.Traffic(),
		Policy: twice, Setting: Setting{Limit: reservoir.PerHour(10)}, Store: memstore.New()}
	o, err := r.Run(t.Context())
	require.EqualError(t, err, "10 tokens were admitted over the limit")
	require.EqualValues(t, 10, o.Over)
}
