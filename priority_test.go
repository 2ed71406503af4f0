package reservoir_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Priority: limiters of one name count in the same windows, so a low one of 600 is refused when all together have used 600, and a high
// one of 1,000 goes on. The judge counts tokens that were admitted.

const (
	lowTokens  = 600
	highTokens = 1000
)

// tiers are the two limiters of each of some processes.
type tiers struct{ low, high []*reservoir.Limiter }

func openTiers(t *testing.T, net *testnet.Network, processes int, limit reservoir.Limit, opt reservoir.Option) (all tiers) {
	for i := range processes {
		for tokens, list := range map[int64]*[]*reservoir.Limiter{lowTokens: &all.low, highTokens: &all.high} {
			limit.Tokens = tokens
			*list = append(*list, open(t, net.Port(i, 0), limit, opt))
		}
	}
	return all
}

// spendAll asks for single tokens until nobody of all has admitted one for a while, which tokens on their way back need.
func spendAll(t *testing.T, all []*reservoir.Limiter) (admitted int64) {
	for idle := 0; idle < 40; idle++ {
		for _, l := range all {
			for allow(t, l, "k", 1).Allowed {
				admitted++
				idle = 0
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return admitted
}

func TestPriority(t *testing.T) {
	lost := 0
	for kind, limit := range map[string]reservoir.Limit{"fixed": reservoir.PerHour(1), "rolling": reservoir.PerHour(1).Rolling()} {
		for policy, opt := range map[string]reservoir.Option{"adaptive": reservoir.WithBatch(1, 0), "direct": reservoir.WithDirect()} {
			for name, trouble := range map[string]func(*testing.T, *testnet.Network, *tiers) (stranded int64){
				"none": func(*testing.T, *testnet.Network, *tiers) int64 { return 0 },
				"a message in three lost": func(t *testing.T, net *testnet.Network, _ *tiers) int64 {
					rnd := rand.New(rand.NewPCG(1, 2))
					net.Lock()
					defer net.Unlock()
					var mu sync.Mutex
					net.Travel = func(_ int, leg testnet.Leg) time.Duration {
						mu.Lock()
						defer mu.Unlock()
						if leg == testnet.Message && rnd.IntN(3) == 0 {
							lost++
							return -1
						}
						return time.Millisecond
					}
					return 0
				},
				"a process killed": func(t *testing.T, net *testnet.Network, all *tiers) int64 {
					held := all.low[0].Stats().Held + all.high[0].Stats().Held
					all.low, all.high = all.low[1:], all.high[1:] // nobody hears of the first any more
					net.Faults(func(c *testnet.Call) testnet.Fault {
						if c.Who == 0 {
							return testnet.LoseRequest
						}
						return testnet.Fine
					})
					return held
				},
				"an outage": func(t *testing.T, net *testnet.Network, all *tiers) int64 {
					breakdown(t, all.low[0], net, testnet.Refuse)
					_, err := all.low[1].AllowN(bg, "k", lowTokens/2+1)
					_, away := errors.AsType[*reservoir.StoreError](err)
					require.True(t, away, "%v", err)
					time.Sleep(time.Minute)
					net.Faults(nil)
					time.Sleep(time.Minute)
					return 0
				},
			} {
				inBubble(t, kind+"/"+policy+"/"+name, func(t *testing.T) {
					net := testnet.Far(time.Millisecond)
					all := openTiers(t, net, 3, limit, opt)
					var low, high int64
					for i := range 50 { // all of them have stock
						if i%2 == 0 && allow(t, all.low[i%3], "k", 2).Allowed {
							low += 2
						} else if allow(t, all.high[i%3], "k", 2).Allowed {
							high += 2
						}
						time.Sleep(100 * time.Millisecond)
					}
					require.EqualValues(t, 100, low+high)
					stranded := trouble(t, net, &all)
					low += spendAll(t, all.low)
					assert.LessOrEqual(t, low+high, int64(lowTokens), "the low ones are refused when all together have used their limit")
					assert.GreaterOrEqual(t, low+high+stranded, int64(lowTokens)-int64(len(all.high))*60, "what the high ones hold idle is a tenth at most")
					high += spendAll(t, all.high)
					assert.EqualValues(t, highTokens, low+high+stranded, "the high ones go on, and nothing is lost")
					low += spendAll(t, all.low)
					assert.EqualValues(t, highTokens, low+high+stranded)
					synctest.Wait()
				})
			}
		}
	}
	assert.Positive(t, lost, "messages")
}

// TestPriorityOverTime: at random times and under faults neither limit is ever exceeded in a window of its kind.
func TestPriorityOverTime(t *testing.T) {
	inBubbles(t, "", map[string]reservoir.Option{"adaptive": reservoir.WithBatch(1, 0), "direct": reservoir.WithDirect()}, func(t *testing.T, _ string, opt reservoir.Option) {
		faults := []testnet.Fault{testnet.LoseRequest, testnet.LoseReply, testnet.Repeat, testnet.ArriveLate}
		net, limit, rnd := testnet.Far(time.Millisecond), reservoir.PerMinute(1).Rolling(), rand.New(rand.NewPCG(3, 4))
		all := openTiers(t, net, 3, limit, opt)
		net.Faults(faulty(5, 10, faults))
		low, both := new(spends), new(spends)
		for end := time.Now().Add(6 * time.Minute); time.Now().Before(end); time.Sleep(time.Duration(rnd.ExpFloat64() * float64(25*time.Millisecond))) {
			who, n, high := rnd.IntN(3), 1+rnd.Int64N(3), rnd.IntN(4) == 0
			of := all.low
			if high {
				of = all.high
			}
			if r, err := of[who].AllowN(bg, "k", n); err == nil {
				if both.add(r, n); !high {
					low.add(r, n)
				}
			}
		}
		assert.LessOrEqual(t, low.most(time.Minute), int64(lowTokens))
		assert.LessOrEqual(t, both.most(time.Minute), int64(highTokens))
		assert.Greater(t, both.most(time.Minute), int64(highTokens*8/10), "the high ones got more than the low ones may")
		assert.NotEmpty(t, low.refused)
		for _, f := range faults {
			assert.Positive(t, net.Happened(f), f)
		}
	})
}
