package reservoir_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// everyday drives one shape: requests of one token at processes.
func everyday(t *testing.T, processes int, limit int64, stick int, random bool, seed uint64) (first, worst, needless, calls float64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	net := testnet.Far(time.Millisecond)
	all := fleet(t, processes, net, reservoir.PerMinute(limit))
	demand := int(limit * 3 / 2)
	windows := 6
	var requests, refusedEarly, firsts int
	worst = 1
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
	at, left := 0, 0
	c0 := 0
	for w := range windows {
		if w == 1 {
			c0 = net.Count("")
			requests = 0
		}
		begin := time.Now()
		spent, refused := int64(0), false
		end := time.Time{}
		for i := range demand {
			time.Sleep(time.Until(begin.Add(time.Duration(i) * 50 * time.Second / time.Duration(demand))))
			if left--; left < 0 {
				left = stick - 1
				at = rnd.IntN(processes)
			}
			if random {
				at = rnd.IntN(processes)
			}
			r, err := all[at].Allow(bg, "k")
			if err != nil {
				t.Fatal(err)
			}
			if end.IsZero() {
				end = r.Reset
			}
			requests++
			if r.Allowed {
				spent++
			} else {
				if !refused {
					refused = true
					if w > 0 {
						f := float64(spent) / float64(limit)
						first += f
						worst = min(worst, f)
						firsts++
					}
				}
				if spent < limit && w > 0 {
					refusedEarly++
				}
			}
		}
		if spent > limit {
			t.Errorf("over: %d", spent)
		}
		time.Sleep(time.Until(end) + 10*time.Millisecond)
	}
	return first / float64(max(firsts, 1)), worst, float64(refusedEarly) / float64(requests), float64(net.Count("")-c0) / float64(requests)
}

func TestEverydayQuick(t *testing.T) {
	for _, p := range []int{3, 20} {
		for _, l := range []int64{10, 60, 300, 1000} {
			for _, shape := range []struct {
				name   string
				stick  int
				random bool
			}{{"random", 1, true}, {"bursts", 10, false}, {"sticky", 20, false}} {
				t.Run(fmt.Sprintf("%d/%d/%s", p, l, shape.name), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f, w, n, c := everyday(t, p, l, shape.stick, shape.random, 1)
						fmt.Printf("%3d %5d %-7s first %5.1f worst %5.1f needless %5.2f%% calls %5.1f%%\n", p, l, shape.name, f*100, w*100, n*100, c*100)
					})
				})
			}
		}
	}
}
