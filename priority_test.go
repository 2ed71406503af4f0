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
