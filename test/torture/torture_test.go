package torture

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

var (
	long = flag.Duration("torture", 0, "how `long` TestTorture runs; by default each fault happens once")
	seed = flag.Uint64("seed", 1, "of the faults and of the load")
	only = flag.String("topology", "", "the `name` of the only topology")
)

func TestMain(m *testing.M) {
	logging.Disable() // faults are expected
	if RunWorker() {
		return
	}
	inMemory()
	_ = flag.Set("test.parallel", "16") // scenarios mostly wait; the flag exists
	redistest.Main(m)
}

// inMemory has servers keep their files in memory where that can be. A node of a
// cluster syncs its configuration at every slot that moves, and a disk that is
// slow at it would be a fault that nobody asked for.
func inMemory() {
	const shm = "/dev/shm"
	if f, err := os.CreateTemp(shm, "reservoir"); err == nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
		_ = os.Setenv("TMPDIR", shm) // fails for no valid name
	}
}

// TestTorture has every kind of fault happen, and judges what that did.
func TestTorture(t *testing.T) {
	t.Parallel()
	var list []*outcome
	if *long == 0 {
		list = together(t, scenarios(brief, *seed, true))
	} else {
		list = inTurn(t, *seed, *long)
	}
	v := judge(list, *long > 0)
	t.Logf("seed %d\n%s", *seed, report(v))
	require.False(t, t.Failed(), "a scenario could not be ended")
	require.Empty(t, v.broken(), "a promise is broken")
}

// TestSabotageIsFound has a store grant more than it charges, or a token less,
// each time: real processes, no fault but this. What is too much is a fiftieth of
// the limit, for on a busy machine a window may end before its last tokens are asked for;
// where every one did, nothing can be told.
func TestSabotageIsFound(t *testing.T) {
	t.Parallel()
	for skew, promise := range map[int64]string{
		tightLimit / 50: "tokens spent that were never charged",
		-1:              "tokens lost, no process killed",
	} {
		t.Run(promise, func(t *testing.T) {
			t.Parallel()
			sc := brief
			sc.Topology, sc.Seed, sc.Skew = durable, *seed, skew
			o := sc.Run(t)
			require.Contains(t, judge([]*outcome{o}, false).broken(), promise)
			if skew > 0 {
				for range 10 {
					if o.usedUp() {
						break
					}
					o = sc.Run(t)
				}
				require.Subset(t, judge([]*outcome{o}, false).broken(), []string{"over-admission without data loss", "over-admission in an interval of a rolling limit"})
			}
		})
	}
}

// usedUp reports whether the tokens of a short window that nobody resets were all asked for.
func (o *outcome) usedUp() bool {
	for id, s := range o.Lines {
		for _, spent := range s.Windows {
			if !uses[id.Role].renewed && spent >= o.Scenario.demand(id.Role).limit.Tokens {
				return true
			}
		}
	}
	return false
}

// together runs the scenarios side by side: most of their time is waiting.
func together(t *testing.T, plan []scenario) []*outcome {
	list := make([]*outcome, len(plan))
	t.Run("scenarios", func(t *testing.T) {
		for i, sc := range plan {
			t.Run(string(sc.Topology), func(t *testing.T) {
				t.Parallel()
				list[i] = sc.Run(t)
			})
		}
	})
	return slices.DeleteFunc(list, func(o *outcome) bool { return o == nil }) // of a scenario that failed
}

// inTurn runs scenarios one after the other until the time is over.
func inTurn(t *testing.T, seed uint64, during time.Duration) (list []*outcome) {
	for end := time.Now().Add(during); ; {
		plan := scenarios(full, seed, false)
		seed += uint64(len(plan))
		for _, sc := range plan {
			if !time.Now().Before(end) {
				return list
			}
			if *only != "" && string(sc.Topology) != *only {
				continue
			}
			ok := t.Run(fmt.Sprintf("%v, seed %d", sc.Topology, sc.Seed), func(t *testing.T) {
				list = append(list, sc.Run(t))
			})
			if !ok {
				return list // and report what there is
			}
		}
	}
}
