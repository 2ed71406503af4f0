package reservoir

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// While a machine is suspended its monotonic clock stands still and tokens grow
// old: the wall clock tells.
func TestSuspendedMachine(t *testing.T) {
	for _, c := range []struct {
		name  string
		leap  time.Duration
		spent bool // from the old stock
	}{
		{"slewed", 10 * time.Millisecond, true},
		{"set back", -time.Hour, true},
		{"suspended", 2 * time.Minute, false},
		{"suspended across the end", 59 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := open(t, memstore.New(), PerMinute(100), WithBatch(Fixed(100)))
				leapt := time.Duration(0)
				l.clock.wall = func() int64 { return time.Now().Add(leapt).UnixNano() }
				allow(t, l, "k", 1)
				time.Sleep(2 * time.Second)
				allow(t, l, "k", 1)
				leapt = c.leap
				time.Sleep(20 * time.Millisecond)
				assert.Equal(t, c.spent, allow(t, l, "k", 1).Source == Local)
			})
		})
	}
}

// Slow drift between the clocks is not taken for a suspension, however long the
// limiter has not looked.
func TestClockDriftIsNoSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock
		c.init()
		base := time.Now()
		c.wall = func() int64 { d := time.Since(base); return base.Add(d + d/2000).UnixNano() }
		for _, d := range []time.Duration{time.Millisecond, time.Second, time.Hour, 48 * time.Hour} {
			time.Sleep(d)
			assert.Equal(t, int64(time.Since(base)), c.now())
		}
	})
}
