package reservoir

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/chance"
)

var (
	seeds = flag.Uint64("seeds", 2000, "how many seeds TestSeeds runs")
	seed  = flag.Int64("seed", -1, "the one seed that TestSeeds runs, telling what happens")
)

// A bubble of virtual time costs more than a seed, so that many share one. Each
// begins at an instant of its own, which is the same when it is run alone: random
// intervals depend on it.
const (
	perBubble = 200
	apart     = 1000 * time.Hour
)

// TestSeeds runs the limiter, all but its store's network, under many seeds, each
// of which draws some dozens of steps: callers of all kinds that come, give up and
// refund, a network that reorders, delays, repeats and loses, windows that end, a
// store that loses its data, limiters that close.
func TestSeeds(t *testing.T) {
	defer chance.Seed(1)()
	if *seed >= 0 {
		synctest.Test(t, func(t *testing.T) {
			tryOut(t, uint64(*seed), tally{}, func(s *sim) { s.say = t.Logf })
		})
		return
	}
	seen := runSeeds(t, *seeds, nil)
	if *seeds >= 2000 && !t.Failed() {
		covered(t, seen)
	}
}

// runSeeds runs seeds from 0 on, as many at a time as there are processors, until
// one fails.
func runSeeds(t *testing.T, n uint64, set func(*sim)) tally {
	all := tally{}
	var mu sync.Mutex
	var next atomic.Uint64
	t.Run("all", func(t *testing.T) {
		for i := range 2 {
			t.Run(fmt.Sprint("worker", i), func(t *testing.T) {
				t.Parallel()
				seen := tally{}
				for !t.Failed() {
					first := next.Add(perBubble) - perBubble
					if first >= n {
						break
					}
					synctest.Test(t, func(t *testing.T) { bubble(t, first, min(first+perBubble, n), seen, set) })
				}
				mu.Lock()
				defer mu.Unlock()
				for what, c := range seen {
					all[what] += c
				}
			})
		}
	})
	return all
}

func bubble(t *testing.T, from, to uint64, seen tally, set func(*sim)) {
	start, store := time.Now(), memstore.New()
	for seed := from; seed < to; seed++ {
		time.Sleep(time.Until(start.Add(time.Duration(seed%perBubble) * apart)))
		if text := attempt(seed, store, seen, set); text != "" {
			t.Errorf("seed %d: %s\nto replay: go test -run='^TestSeeds$' -v -seed=%d .", seed, text, seed)
			return
		}
	}
}

// tryOut runs one seed at the instant that is its own.
func tryOut(t *testing.T, seed uint64, seen tally, set func(*sim)) {
	time.Sleep(time.Duration(seed%perBubble) * apart)
	if text := attempt(seed, memstore.New(), seen, set); text != "" {
		t.Errorf("seed %d: %s", seed, text)
	}
}

// attempt runs a seed and returns the law that it broke, or nothing.
func attempt(seed uint64, store *memstore.Store, seen tally, set func(*sim)) (text string) {
	s := newSim(seed, store, seen)
	if set != nil {
		set(s)
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case breach:
			text = string(p)
			s.abandon()
		default:
			panic(p)
		}
	}()
	s.run()
	return ""
}

// abandon ends all goroutines of a run that has failed.
func (s *sim) abandon() {
	s.wire.mu.TryLock() // the step that failed may have held it
	s.wire.calm, s.wire.bug, s.wire.forget = true, nil, nil
	for m := s.wire.pick(0); m != nil; m = s.wire.pick(0) {
		m.err = errLost
		s.wire.answer(m)
	}
	s.wire.mu.Unlock()
	for _, c := range s.callers {
		c.cancel()
	}
	for _, p := range s.all {
		_ = p.Close(context.Background())
	}
	synctest.Wait()
}

// covered checks that the seeds have been everywhere.
func covered(t *testing.T, seen tally) {
	for _, what := range []string{
		"allowed from local", "allowed from fetched", "allowed from direct", "refused from fetched", "refused from direct", "refused from denied",
		"waited", "cancelled", "out of time", "hopeless", "failed", "fallback", "refunded from local", "refunded from fetched", "refunded from direct",
		"refund unknown", "lost request", "lost reply", "cut", "refused", "repeated", "late call", "too late", "lost data", "recovered", "re-asserted",
		"closed under way", "told closed", "prefetch", "probe", "give back", "unknown take", "expired", "returned", "rolled", "quiet", "exact",
		"away at the end", "another limit", "over the limit", "queue waits for the reset",
	} {
		assert.Positive(t, seen[what], what)
	}
	t.Log(seen)
}

// TestSeedsNotice: the laws notice each of these deliberate bugs.
func TestSeedsNotice(t *testing.T) {
	defer chance.Seed(1)()
	for name, set := range map[string]func(*sim){
		"a grant that is not charged": inReplies(func(r *backend.SyncReply) {
			if r.Grant > 0 {
				r.Grant, r.Granted = r.Grant+1, r.Granted+1
			}
		}),
		"a lost grant is not handed over": inReplies(func(r *backend.SyncReply) { r.Grant, r.Recovered = r.Grant-r.Recovered, 0 }),
		"a give-back is not heard": func(s *sim) {
			s.wire.forget = func(r *backend.SyncRequest) { r.Returned = 0 }
		},
		"a take that charges nothing": func(s *sim) {
			s.wire.bug = func(op string, reply any) {
				if r, ok := reply.(*backend.TakeReply); ok {
					r.Allowed = true
				}
			}
		},
		"a batch is kept across windows": inReplies(func(r *backend.SyncReply) { r.Carried = r.Window != 0 }),
		"a window that seems longer":     inReplies(func(r *backend.SyncReply) { r.Left *= 3 }),
		"a pot is left behind":           inEntries(func(e *entry) { e.pot++ }),
		"a wake-up is lost": inEntries(func(e *entry) {
			if e.flight == nil && !e.queue.empty() {
				e.timer.Stop()
			}
		}),
		"a caller is forgotten": inEntries(func(e *entry) {
			if p := e.queue.head; p != nil && p.wait {
				e.queue.remove(p)
				p.done = true
			}
		}),
		"the books are cooked": inEntries(func(e *entry) { e.flow++; e.l.count.taken.Add(1) }),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				for seed := range uint64(perBubble) {
					if text := attempt(seed, store, tally{}, set); text != "" {
						t.Logf("seed %d: %s", seed, text)
						return
					}
				}
				t.Error("nobody noticed")
			})
		})
	}
	require.Equal(t, traffic{}, calm)
}

func inReplies(change func(r *backend.SyncReply)) func(*sim) {
	return func(s *sim) {
		s.wire.bug = func(op string, reply any) {
			if r, ok := reply.(*backend.SyncReply); ok {
				change(r)
			}
		}
	}
}

// inEntries makes a bug of a change to the entries, after each step.
func inEntries(change func(e *entry)) func(*sim) {
	return func(s *sim) {
		s.bug = func(s *sim) {
			for _, p := range s.all {
				for _, key := range s.keys {
					if e := p.table.get(key); e != nil {
						e.mu.Lock()
						change(e)
						e.mu.Unlock()
					}
				}
			}
		}
	}
}
