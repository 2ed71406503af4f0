// Package search looks at all that can happen to one key of a store in a small scope: every order of statements, with
// requests and replies that are lost, repeated and late, give-backs, refunds and overruns, clients that are killed, time
// that passes, holds, Resets, and a store that loses its data. The code that is judged is the real one: the store's rules and the
// client's account. The judge is the model of internal/naive, which knows nothing of them.
//
// States that differ by the clients' names only are one.
package search

import (
	"flag"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

var (
	states  = flag.Int("states", 0, "how many `states` of each kind of limit TestLong looks at, at most; 0 = none")
	within  = flag.Duration("within", 8*time.Hour, "how `long` it does so at most")
	clients = flag.Int("clients", 3, "how many clients it has, at most 3")
	amount  = flag.Int64("tokens", 3, "its limit")
	sends   = flag.Int("sends", 3, "how many statements each client makes")
	times   = flag.Int("times", 2, "how often each kind of fault happens at most, but for a loss of the store, which happens once")
	seed    = flag.Uint64("seed", 1, "of the order in which it looks, which matters if it does not see all")
)

// everything may happen once.
var everything = budget{lost: 1, repeats: 1, kills: 1, resets: 1, losses: 1, returns: 1, refunds: 1, debts: 1, leaves: 1, directs: 1}

// ofWindows is a scope of a fixed limit. Its instants are a little before the ends of windows that open at earlier ones, after
// their deadlines, and the ends.
func ofWindows(most budget, instants ...time.Duration) *scope {
	if instants == nil {
		instants = []time.Duration{0, 1100, 2198, 2199, 2200, 3301}
	}
	return &scope{limit: backend.Limit{Tokens: 2, Window: 2200 * time.Millisecond}, clients: 2, wants: []int64{0, 2}, sends: 2, most: most, instants: milliseconds(instants)}
}

// ofBuckets is a scope of a rolling limit. A bucket lasts 100 ms. Tokens may be spent for 1,000 to 1,100 ms after a grant, and
// count for 2 s more.
func ofBuckets(most budget, instants ...time.Duration) *scope {
	if instants == nil {
		instants = []time.Duration{0, 1050, 2050, 3070, 3110, 5200}
	}
	c := ofWindows(most, instants...)
	c.limit = backend.Limit{Tokens: 2, Window: 2 * time.Second}.Rolling()
	c.plain = true // when a client hears matters, because the store's clock is then read
	return c
}

func milliseconds(list []time.Duration) (all []time.Duration) {
	for _, n := range list {
		all = append(all, n*time.Millisecond)
	}
	return all
}

// ofSeconds is ofWindows with windows of whole seconds, whose ends are rounded, so that one after a Reset may end with the last one.
func ofSeconds(most budget) *scope {
	c := ofWindows(most, 0, 900, 1998, 2000, 2900)
	c.limit.Window = 2 * time.Second
	return c
}

// ofDays is ofWindows by a calendar.
func ofDays(most budget) *scope {
	c := ofWindows(most)
	c.limit = backend.Limit{Tokens: 2, Window: 24 * time.Hour, Calendar: backend.Calendar{Period: backend.Day}}
	_, midnight := c.limit.Calendar.Around(time.UnixMicro(base))
	rest := time.Duration(midnight.UnixMicro()-base) * time.Microsecond
	c.instants = []time.Duration{0, rest - time.Minute, rest - time.Millisecond, rest, rest + time.Hour}
	return c
}

// TestSearch looks at all states of small scopes, and at a part of those in which everything may happen.
func TestSearch(t *testing.T) {
	halves, noted := ofWindows(everything), ofWindows(budget{losses: 1, kills: 1, returns: 1, refunds: 1, debts: 1, leaves: 1})
	halves.losing, noted.losing = []kind{loseCount, loseEnd}, []kind{loseLedger}
	halves.most.directs = 0
	kept, held := everything, budget{lost: 1, resets: 1, losses: 1, returns: 1, debts: 1, directs: 1, holds: 2}
	kept.losses = 0
	for name, row := range map[string]struct {
		whole *scope
		parts []*scope
	}{
		"fixed":   {ofWindows(budget{lost: 1, returns: 1}, 0, 2198, 2200), []*scope{ofWindows(everything), ofSeconds(everything), ofDays(everything), halves, noted, ofWindows(held), ofSeconds(held)}},
		"rolling": {ofBuckets(budget{lost: 1}, 0, 1050, 3110), []*scope{ofBuckets(everything), ofBuckets(kept), ofBuckets(held)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := row.whole.deep(1e9, time.Now().Add(time.Hour))
			t.Log(all)
			require.NoError(t, all.err)
			assert.True(t, all.whole)
			var seen [kinds]int
			for _, c := range row.parts {
				some := c.deep((310_000-all.states)/len(row.parts), time.Now().Add(time.Hour))
				t.Log(some)
				require.NoError(t, some.err)
				for i, n := range some.seen {
					seen[i] += n
				}
			}
			for i, n := range seen {
				assert.True(t, n > 0 || name == "rolling" && kind(i) > lose, "never happened: %s", kindNames[i])
			}
		})
	}
}

// TestLong is TestSearch with the scope that its flags say, for a night.
func TestLong(t *testing.T) {
	if *states == 0 {
		return
	}
	n := int8(*times)
	most := budget{lost: n, repeats: n, kills: 1, resets: n, losses: 1, returns: n, refunds: n, debts: n, leaves: n, directs: n, holds: n}
	for name, c := range map[string]*scope{"fixed": ofWindows(most), "rolling": ofBuckets(most)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.clients, c.limit.Tokens, c.sends, c.wants, c.seed = *clients, *amount, *sends, []int64{0, 1, *amount}, *seed
			r := c.deep(*states, time.Now().Add(*within))
			t.Log(r)
			require.NoError(t, r.err)
		})
	}
}

// TestPlanted: the search finds each fault, by a schedule that a reader can follow.
func TestPlanted(t *testing.T) {
	for _, row := range []struct {
		fault fault
		scope *scope
	}{
		{lostCharged, ofWindows(budget{lost: 1})},
		{returnedTwice, ofWindows(budget{returns: 1})},
		{early, ofWindows(budget{})},
		{notReasserted, ofWindows(budget{losses: 1})},
		{refundedTwice, ofWindows(budget{refunds: 1})},
		{secretLoss, ofWindows(budget{losses: 1})}, // it is what a loss costs
		{wrongWindow, ofWindows(budget{returns: 1})},
		{noOrder, ofWindows(budget{repeats: 1})},
		{anyReply, ofWindows(budget{repeats: 1, lost: 1})},
		{sameLife, ofWindows(budget{leaves: 1})},
		{forgetful, ofWindows(budget{leaves: 1, returns: 1})},
		{noGeneration, ofWindows(budget{resets: 1}, 0)},
		{lateClaim, ofWindows(budget{losses: 1, returns: 1})},
		{lateDeadline, ofWindows(budget{})},
		{noSum, ofWindows(budget{losses: 1})},
		{noClaims, ofWindows(budget{losses: 1, returns: 1})},
		{ahead, ofDays(budget{})},
		{unread, ofWindows(budget{directs: 1, holds: 1})},
		{forgotten, ofWindows(budget{losses: 1, holds: 1})},
		{endless, ofWindows(budget{resets: 1, holds: 1})},

		{lostCharged, ofBuckets(budget{lost: 1})},
		{returnedTwice, ofBuckets(budget{returns: 1})},
		{early, ofBuckets(budget{}, 0, 1150, 3110)},
		{wrongWindow, ofBuckets(budget{returns: 1}, 0, 1050, 3050)},
		{refundedTwice, ofBuckets(budget{refunds: 1})},
		{noOrder, ofBuckets(budget{repeats: 1})},
		{anyReply, ofBuckets(budget{repeats: 1, lost: 1})},
		{sameLife, ofBuckets(budget{leaves: 1, repeats: 1})},
		{forgetful, ofBuckets(budget{leaves: 1, returns: 1})},
		{noGeneration, ofBuckets(budget{resets: 1}, 0)},
		{secretLoss, ofBuckets(budget{losses: 1})},
		{unread, ofBuckets(budget{directs: 1, holds: 1})},
		{endless, ofBuckets(budget{resets: 1, holds: 1})},
		{lateDeadline, ofBuckets(budget{}, 0, 50, 1070, 1120, 3110)},
	} {
		t.Run(fmt.Sprintf("%s rolling=%v", row.fault, row.scope.limit.Rolls), func(t *testing.T) {
			c := row.scope
			c.fault, c.plain = row.fault, c.plain || row.fault == lateDeadline // else a client hears before time passes
			defer func() {
				if r := recover(); r != nil { // with -race the account's own invariants may be the first to find it
					require.Contains(t, fmt.Sprint(r), "broken invariant")
				}
			}()
			r := c.wide(200_000)
			t.Log(r)
			assert.Error(t, r.err)
		})
	}
}

// TestReduction: to leave out orders of actions that commute leaves out no state in which nobody waits.
func TestReduction(t *testing.T) {
	c := ofWindows(budget{lost: 1, repeats: 1, resets: 1}, 0, 2198, 2202)
	c.sends = 1
	some := *c
	some.quiet = make(map[uint64]bool)
	less := some.deep(1e9, time.Now().Add(time.Hour))
	all := *c
	all.quiet, all.plain = make(map[uint64]bool), true
	more := all.deep(1e9, time.Now().Add(time.Hour))
	t.Logf("%d states for %d, %d and %d of them quiet", less.states, more.states, len(some.quiet), len(all.quiet))
	assert.True(t, less.whole && more.whole)
	assert.True(t, maps.Equal(all.quiet, some.quiet))
}
