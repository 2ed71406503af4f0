package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// Every way to limit over Redis does: a yardstick that lets too much or too
// little through would measure nothing. The window is a day, so that none that
// goes by the clock's days is reset meanwhile but at midnight.
func TestPeersAdmitTheLimit(t *testing.T) {
	const limit = 50
	server := redistest.Start(t)
	r := newRig(server.Addr(), reservoir.Limit{Tokens: limit, Window: 24 * time.Hour})
	defer func() { require.NoError(t, r.close()) }()
	for _, k := range overRedis {
		if k.every == inMemory && k.name != ours.name {
			continue // fixed batches are larger than the limit; they have tests of their own
		}
		want := limit
		if k.name == throttledRedis.name {
			want++ // a burst, and one
		}
		require.Equal(t, want, admitted(t, r, k, 2*limit), k.name)
	}
}

// admitted is how many of n requests, one after the other, k admits.
func admitted(t *testing.T, r *rig, k kind, n int) (good int) {
	p := k.set(r)
	defer func() { require.NoError(t, p.close()) }()
	for range n {
		ok, err := p.allow(t.Context(), "k")
		require.NoError(t, err, k.name)
		if ok {
			good++
		}
	}
	return good
}

// The library that it stands in for knows no more of a limit that is used up, and
// makes no call until the window is over.
func TestMennanovRemembers(t *testing.T) {
	server := redistest.Start(t)
	r := newRig(server.Addr(), reservoir.Limit{Tokens: 1, Window: 24 * time.Hour})
	defer func() { require.NoError(t, r.close()) }()
	require.Equal(t, 1, admitted(t, r, mennanov, 10))
	require.Equal(t, int64(2), server.Calls("incr"), "the token, and the refusal that is remembered")
}

// vearne's leftovers do not expire, and are spent in the next window.
func TestVearneKeepsLeftovers(t *testing.T) {
	server := redistest.Start(t)
	r := newRig(server.Addr(), reservoir.Limit{Tokens: 1_000, Window: 24 * time.Hour})
	defer func() { require.NoError(t, r.close()) }()
	c := &counter{key: "k", flood: rate.NewLimiter(rate.Inf, 0)}
	spend := func(n int) (good int) {
		for range n {
			ok, err := c.allow(t.Context(), r)
			require.NoError(t, err)
			if ok {
				good++
			}
		}
		return good
	}
	require.Equal(t, 10, spend(10))
	require.NoError(t, r.goRedis.FlushDB(t.Context()).Err()) // as the next window finds it
	require.Equal(t, 1_990, spend(3_000), "what was left, and the limit")
}

// Who reads a table is told what is not the library itself.
func TestStandInsAreNamed(t *testing.T) {
	for _, k := range []kind{rueidisLimiter, goRedisStore, mennanov, vearne} {
		require.True(t, strings.HasPrefix(k.name, "["), k.name)
	}
}
