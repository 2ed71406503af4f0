package key

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/invariant"
)

// This file looks at what can happen to the whole key in a small scope: two processes with a key each share a counter, and callers,
// statements, replies, messages, timers and the time come in every order. What happens is an action, a value, and nothing happens
// otherwise: no goroutine calls the store, and the clock stands still. world_test.go has the world, and judge_test.go the judges.
//
// A walk begins with the world's beginning. For some steps it does what was not done in a state, if there is such an action. Then,
// in each state that is new, it lets the world come to rest: all is delivered, and time passes as far as timers go. From
// the new states on the way before that it does the same in walks of their own. So each state is seen to lead to rest.

var (
	searchStates = flag.Int("search", 0, "how many `states` of each scope TestSearch looks at; 0 = a few")
	searchSeed   = flag.Uint64("search.seed", 1, "of the order in which it looks, and of what is random in keys")
)

// small is a scope: limits of so many tokens, of 2.2 s or, rolling, 2 s.
func small(limit int64, rolls bool, sizing demand.Policy, most budget) scope {
	l := backend.Limit{Tokens: limit, Window: 2200 * time.Millisecond}
	if rolls {
		l = backend.Limit{Tokens: limit, Window: 2 * time.Second}.Rolling()
	}
	return scope{limit: l, sizing: sizing, most: most}
}

// TestSearch looks at a part of each scope.
func TestSearch(t *testing.T) {
	adaptive, pairs := demand.Policy{Kind: demand.Adaptive, Min: 1}, demand.Policy{Kind: demand.Fixed, Min: 2}
	var seen [kinds]int
	states := 0
	for _, rolls := range []bool{false, true} {
		direct := small(3, rolls, adaptive, budget{asks: 3, gives: 1, refunds: 1, lost: 1, late: 1, times: 4})
		direct.direct = true
		deaf := small(3, rolls, pairs, budget{asks: 3, refunds: 1, lost: 1, times: 5, idles: 1})
		deaf.deaf = true
		for name, c := range map[string]scope{
			"network":    small(3, rolls, adaptive, budget{asks: 3, lost: 2, late: 2, times: 4}),
			"stock":      small(4, rolls, pairs, budget{asks: 3, refunds: 1, debts: 1, lost: 1, late: 1, times: 4}),
			"messages":   small(4, rolls, pairs, budget{asks: 4, stays: true, gives: 1, refunds: 1, mail: 2, times: 4}),
			"resets":     small(3, rolls, pairs, budget{asks: 3, stays: true, lost: 1, mail: 1, times: 3, resets: 2}),
			"holds":      small(3, rolls, pairs, budget{asks: 3, stays: true, refunds: 1, lost: 1, late: 1, mail: 1, times: 4, resets: 1, holds: 2}),
			"leaves":     small(3, rolls, pairs, budget{asks: 3, refunds: 1, lost: 1, late: 1, times: 3, idles: 2, limits: 2}),
			"everything": small(2, rolls, pairs, budget{asks: 4, stays: true, gives: 2, refunds: 2, debts: 1, lost: 2, late: 2, mail: 2, times: 6, resets: 1, idles: 1, limits: 2, outages: 1, holds: 1}),
			"outages":    small(3, rolls, pairs, budget{asks: 3, stays: true, gives: 1, refunds: 1, lost: 1, times: 4, idles: 1, outages: 2}),
			"direct":     direct,
			"deaf":       deaf,
		} {
			t.Run(fmt.Sprintf("%s rolls=%v", name, rolls), func(t *testing.T) {
				most := *searchStates
				if most == 0 {
					if most = 6000; invariant.Enabled {
						most = 500
					}
				}
				r := c.search(t, most, *searchSeed)
				t.Log(r)
				require.NoError(t, r.err)
				states += r.states
				for i, n := range r.did {
					seen[i] += n
				}
			})
		}
	}
	for i, n := range seen {
		assert.Positive(t, n, kindNames[i])
	}
	t.Log(states, "states")
}

// TestWays: ways on which something was wrong, and which a search of the usual size finds seldom or not at all.
func TestWays(t *testing.T) {
	adaptive, pairs := demand.Policy{Kind: demand.Adaptive, Min: 1}, demand.Policy{Kind: demand.Fixed, Min: 2}
	for name, row := range map[string]struct {
		scope
		way []action
		did string // what the way leads to
	}{
		// What a copy of the statement was granted goes back before the key is forgotten, though nobody has read that reply, and the caller has gone.
		"a void reply": {small(3, false, adaptive, budget{asks: 1, gives: 1, late: 1}), []action{
			{kind: askOne}, {kind: overtake}, {kind: giveUp}, {kind: arrive}, {kind: hear},
		}, "A the reply comes (void true"},
		"a void reply, rolling": {small(3, true, adaptive, budget{asks: 1, gives: 1, late: 1}), []action{
			{kind: askOne}, {kind: overtake}, {kind: giveUp}, {kind: arrive}, {kind: hear},
		}, "A the reply comes (void true"},
		// Nothing is spent of a reply that says nothing of a hold of which the key has heard meanwhile.
		"a hold overtakes a reply": {small(3, false, adaptive, budget{asks: 1, holds: 1}), []action{
			{askOne, 1, 0}, {arrive, 1, 0}, {hear, 1, 0}, {kind: askOne}, {kind: arrive}, {hold, 1, 0}, {arrive, 1, 1}, {kind: deliver}, {kind: hear},
		}, fmt.Sprintf("the message comes (to A: kind %d", backend.Held)},
		// A key that leaves, and has a request settled above its charge meanwhile, orders no batch. It would give that back at once, and order the next.
		"leaving orders nothing": {small(4, false, pairs, budget{asks: 2, refunds: 1, debts: 1, lost: 2}), []action{
			{kind: askOne}, {kind: arrive}, {kind: hear}, {kind: askTwo}, {kind: loseStatement}, {kind: loseStatement}, {kind: tick}, {kind: visit}, {kind: overrun}, {kind: refund},
		}, "A visits\n1s A " + kindNames[overrun]},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer chance.Seed(1)()
				var did []string
				err := row.replay(row.way, 1, func(a string) { did = append(did, a) })
				text := strings.Join(did[:min(len(did), 60)], "\n")
				require.NoError(t, err, text)
				require.Contains(t, text, row.did)
			})
		})
	}
}

// TestSearchFinds: the search finds faults of the store.
func TestSearchFinds(t *testing.T) {
	for _, f := range []fault{noOrder, generous, greedy} {
		c := small(3, false, demand.Policy{Kind: demand.Fixed, Min: 2}, budget{asks: 3, refunds: 1, lost: 1, late: 1, times: 3})
		c.fault = f
		r := c.search(t, 10_000, 1)
		t.Log(r, r.err)
		require.Error(t, r.err)
	}
}

// result is what a search has found.
type result struct {
	states, steps, walks int
	whole                bool // nothing is left to do in any state that was seen
	took                 time.Duration
	did                  [kinds]int
	err                  error
}

func (r result) String() string {
	return fmt.Sprintf("%d states, %d steps in %d walks, %v, whole=%v", r.states, r.steps, r.walks, r.took.Round(time.Millisecond), r.whole)
}

const (
	mostSteps = 5000 // to rest. More are a loop: callers who stay may wait for some windows, in each of which processes probe some 20 times
	mostFree  = 40   // steps of a walk that are chosen though a state is new
)

// search looks at so many states.
func (c scope) search(t *testing.T, states int, seed uint64) (r result) {
	began := time.Now()
	synctest.Test(t, func(t *testing.T) { // where the time stands still
		defer chance.Seed(seed)()
		var way []action
		if way, r.err = c.walks(&r, states, seed); r.err != nil {
			way = c.shorten(way, seed)
			var texts []string
			if err := c.replay(way, seed, func(s string) { texts = append(texts, s) }); err != nil {
				r.err = err
			}
			r.err = fmt.Errorf("%w, by %v:\n\t%s", r.err, way, strings.Join(texts[:min(len(texts), 60)], "\n\t"))
		}
	})
	r.took = time.Since(began)
	return r
}

// walks makes walks. It returns the way to an error.
func (c scope) walks(r *result, states int, seed uint64) (way []action, err error) {
	dice := rand.New(rand.NewPCG(seed, 0))
	done := make(map[uint64]uint64) // by state: a bit for each of its actions that were done
	open := 0                       // actions that were not
	for r.walks = 1; r.states < states && (open > 0 || r.walks == 1); r.walks++ {
		w := c.begin(seed)
		var first, free int // since when it goes to rest, and how many steps are chosen in any case
		var unproved []int  // states before that, as lengths of the way
		way, free = way[:0], dice.IntN(mostFree)
		for at, before := uint64(0), uint64(0); ; before = at {
			acts := w.actions()
			if at = w.digest(); at == before && way[len(way)-1].kind.itself() {
				return way, errRestless
			}
			did, seen := done[at]
			if !seen {
				r.states++
				open += len(acts)
				if err := w.judge(); err != nil {
					return way, err
				}
			}
			if len(acts) == 0 {
				break
			}
			choice := 0
			if seen || len(way) < free {
				if first = len(way); !seen {
					unproved = append(unproved, len(way))
				}
				choice = choose(dice, did, len(acts))
			} else if len(way)-first > mostSteps {
				return way, errRestless
			}
			if did>>choice&1 == 0 {
				open--
			}
			done[at] = did | 1<<choice
			a := acts[choice]
			way = append(way, a)
			r.steps++
			r.did[a.kind]++
			if err := w.do(a); err != nil {
				return way, err
			}
		}
		if err := w.end(); err != nil {
			return way, err
		}
		for _, n := range unproved {
			if err := c.replay(way[:n], seed, nil); err != nil {
				return way[:n], err
			}
		}
	}
	r.whole = open == 0
	return nil, nil
}

// choose chooses one of so many actions, if possible one that was not done.
func choose(dice *rand.Rand, did uint64, of int) int {
	var list [64]int
	n := 0
	for i := range of {
		if did>>i&1 == 0 {
			list[n] = i
			n++
		}
	}
	if n == 0 {
		return dice.IntN(of)
	}
	return list[dice.IntN(n)]
}

// replay does what a way says, as far as that is possible, and comes to rest. It tells texts, if that is not nil, what it does.
func (c scope) replay(way []action, seed uint64, texts func(string)) error {
	w := c.begin(seed)
	for steps := 0; ; steps++ {
		acts := w.actions()
		if err := w.judge(); err != nil {
			return err
		}
		var a action
		switch {
		case len(way) > 0:
			a, way = way[0], way[1:]
			if !slices.Contains(acts, a) {
				continue
			}
		case len(acts) == 0 || !acts[0].kind.itself():
			return w.end()
		case steps > mostSteps:
			return errRestless
		default:
			a = acts[0]
		}
		if texts != nil {
			texts(w.text(a))
		}
		if err := w.do(a); err != nil {
			return err
		}
	}
}

var errRestless = errors.New("the world does not come to rest")

// shorten leaves out what an error does not need.
func (c scope) shorten(way []action, seed uint64) []action {
	for i := len(way) - 1; i >= 0; i-- {
		less := slices.Delete(slices.Clone(way), i, i+1)
		if err := c.replay(less, seed, nil); err != nil {
			way = less
		}
	}
	return way
}
