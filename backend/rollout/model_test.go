package rollout_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/rollout"
)

// A limit that was spent in the old store stays so, however the flag flaps on the
// way to the new one: a stay there that was over before it came to count is none.
func TestFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, memstore.New(), memstore.New(), 0, 0)
		take := func(n int64) bool {
			r, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: n})
			require.NoError(t, err)
			return r.Allowed
		}
		require.True(t, take(10))
		for _, low := range []float64{0, 100, 0, 100} {
			require.NoError(t, s.SetPercent(low, 100))
			time.Sleep(time.Second)
			require.False(t, take(1), "a second limit")
		}
		time.Sleep(limit10.Window)
		require.True(t, take(10))
	})
}

// asked is a store that notes that it was asked.
type asked struct {
	backend.Store
	was bool
}

func (a *asked) Check(context.Context, string, backend.Limit) (backend.State, error) {
	a.was = true
	return backend.State{}, nil
}

// mover is a process with stores that only it asks.
type mover struct {
	old, new asked
	store    *rollout.Store
	heard    time.Time // when it was last told
	side     int       // what it was told: 0 old, 1 both, 2 new
}

func newMover(t *testing.T) *mover {
	m := &mover{heard: time.Now()}
	m.store = open(t, &m.old, &m.new, 0, 0)
	return m
}

func (m *mover) tell(t *testing.T, side int) {
	require.NoError(t, m.store.SetPercent([]float64{0, 0, 100}[side], []float64{0, 100, 100}[side]))
	m.heard, m.side = time.Now(), side
}

// in says which stores the key's calls go to.
func (m *mover) in(t *testing.T) (in [2]bool) {
	m.old.was, m.new.was = false, false
	_, err := m.store.Check(t.Context(), "k", limit10)
	require.NoError(t, err)
	return [2]bool{m.old.was, m.new.was}
}

// world is what the model knows: where each process has had the key, by the second.
type world struct {
	all  []*mover
	past [][][2]bool
}

// tick notes a second and judges it: who has the key in one store alone has it in a
// store where all have had it for a window's length, so that it counts all of every
// window that runs. Who was told to leave a store has left it a bit later than that.
func (w *world) tick(t *testing.T) {
	now := make([][2]bool, len(w.all))
	for i, m := range w.all {
		now[i] = m.in(t)
		late := time.Since(m.heard) > limit10.Window+2*time.Second
		if m.side == 1 || late {
			require.Equal(t, [][2]bool{{true, false}, {true, true}, {false, true}}[m.side], now[i])
		}
	}
	w.past = append(w.past, now)
	w.past = w.past[max(0, len(w.past)-int(limit10.Window/time.Second)):]
	for _, in := range now {
		for store := range in {
			if in[1-store] {
				continue // not in this one alone
			}
			for _, then := range w.past {
				for i := range then {
					if !then[i][store] {
						t.Fatalf("alone in store %d, which has not counted what process %d did: %v", store, i, w.past)
					}
				}
			}
		}
	}
	time.Sleep(time.Second)
}

// step tells processes one after the other, in any order.
func (w *world) step(t *testing.T, r *rand.Rand, side, processes, haste int) {
	for _, i := range r.Perm(len(w.all))[:processes] {
		w.all[i].tell(t, side)
		for range r.IntN(haste) {
			w.tick(t)
		}
	}
}

// Random sequences of flags, with the one rule kept, against a model that knows
// what all processes did: hasty ones, ones that stay, and ones that are given up.
func TestFlagsAtRandom(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 0))
				w := &world{all: []*mover{newMover(t), newMover(t), newMover(t)}}
				w.tick(t)
				for from, moves := 0, 0; moves < 75; moves++ {
					to, haste, hear := 2*r.IntN(2), []int{2, 20, 80}[r.IntN(3)], len(w.all)
					if r.IntN(5) == 0 { // who has not heard of both yet need not, if all go back
						to, hear = from, r.IntN(hear)
					}
					w.step(t, r, 1, hear, haste)
					w.step(t, r, to, len(w.all), haste)
					from = to
				}
			})
		})
	}
}
