package reservoir_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Requests that end in ErrConflict make a call now and then, and are served when the other
// limit's window is over, or soon after the limit has changed.
func TestConflictsAreRemembered(t *testing.T) {
	for what, changes := range map[string]bool{"the window ends": false, "the limit changes": true} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			minute := open(t, net, reservoir.PerMinute(10), reservoir.WithDirect())
			var same atomic.Bool
			limits := []reservoir.Option{opt}
			if changes {
				limits = append(limits, reservoir.WithLimits(func(string) reservoir.Limit {
					if same.Load() {
						return reservoir.PerMinute(20)
					}
					return reservoir.Limit{Tokens: 10, Window: 7 * time.Minute}
				}))
			}
			second := open(t, net, reservoir.PerSecond(10), limits...)
			opened := allow(t, minute, "k", 1)
			calls, requests := net.Count(""), 0
			for time.Until(opened.Reset) > time.Second {
				if changes && requests == 1000 {
					break
				}
				_, err := second.Allow(bg, "k")
				if changes && err == nil { // WithLimits may have changed it, so the open window's length counts
					return
				}
				require.ErrorIs(t, err, reservoir.ErrConflict)
				requests++
				time.Sleep(10 * time.Millisecond)
			}
			require.Less(t, net.Count("")-calls, requests/50)
			if changes {
				same.Store(true)
				time.Sleep(time.Second)
			} else {
				time.Sleep(time.Until(opened.Reset) + time.Second)
			}
			r, err := second.Allow(bg, "k")
			require.NoError(t, err)
			assert.True(t, r.Allowed)
		})
	}
}
