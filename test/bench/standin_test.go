package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// Every way to limit over Redis does: a yardstick that lets too much or too
// little through would measure nothing. The window is a day, so that none that
// goes by the clock's days is reset meanwhile but at midnight.
func TestPeersAdmitTheLimit(t *testing.T) {
	const limit = 50
	server := redistest.Start(t)
	r := connected(t, server.Addr())
	r.limit = reservoir.Limit{Tokens: limit, Window: 24 * time.Hour}
	for _, k := range overRedis {
		if strings.HasSuffix(k.name, ", 1000") {
			continue // these batches are larger than the limit; they have tests of their own
		}
		require.Equal(t, limit, admitted(t, r, k, 2*limit), k.name)
	}
}

// admitted is how many of n requests, one after the other, k admits.
func admitted(t *testing.T, r *rig, k kind, n int) (good int) {
	p, w := k.open(r), &worker{ctx: t.Context(), keys: keys{list: []string{"k"}}}
	defer func() { require.NoError(t, p.end()) }()
	w.make(p, n)
	require.NoError(t, w.err, k.name)
	return int(w.good)
}

// Each bar is between what reaches it and what misses it.
func TestBarsAreMissed(t *testing.T) {
	at := func(name string, k kind, perSecond int64) []*line {
		s := sample{good: perSecond, elapsed: time.Second, latency: sim.NewLatency()}
		return []*line{{scenario: scenario{name: name}, kind: k, runs: [][]sample{{s}}}}
	}
	for throughput, mark := range map[int64]string{999: "missed", 1000: "ok"} {
		text := verdict(results{groups: [][]*line{at("once-512", cold, throughput), at("once-512", evalsha, 1000)}})
		require.Regexp(t, "once-512: throughput .* "+mark+"\n", text)
		require.NotContains(t, text, "zipf", "it was not measured")
	}
}
