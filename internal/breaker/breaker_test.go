package breaker

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = int64(time.Millisecond)

var (
	errSilence  = errors.New("silence")
	errPassword = errors.New("wrong password")
)

// opened is a breaker that has opened at a time.
func opened(t *testing.T, at int64) *Breaker {
	b := new(Breaker)
	for range failuresToOpen - 1 {
		require.False(t, first(b.Record(at, at, Failed, errSilence)))
		require.False(t, b.Open.Load())
		require.False(t, b.Due(at+2*int64(longestPause)))
	}
	require.True(t, first(b.Record(at, at, Failed, errSilence)))
	require.True(t, b.Open.Load())
	return b
}

// first is whether a Record says that the shard needs probes from now on.
func first(watch, _ bool) bool { return watch }

// told are the changes since the last look.
func told(b *Breaker) (all []Change) {
	b.Report(func(c Change) { all = append(all, c) })
	return all
}

// TestOpens after five failures in a row, and closes at the first answer.
func TestOpens(t *testing.T) {
	b := opened(t, 0)
	assert.Equal(t, errSilence, b.Cause())
	assert.Equal(t, []Change{{Open: true, Err: errSilence}}, told(b))
	assert.False(t, first(b.Record(1, 1, Answered, nil)))
	assert.False(t, b.Open.Load())
	assert.NoError(t, b.Cause())
	assert.Equal(t, []Change{{}}, told(b))
	assert.False(t, b.Due(int64(time.Hour)), "there is nothing to find out")

	for range 10 {
		for range failuresToOpen - 1 {
			assert.False(t, first(b.Record(2, 2, Failed, errSilence)))
		}
		b.Record(2, 2, Answered, nil)
		assert.False(t, b.Open.Load(), "the failures are not in a row")
	}
	assert.Empty(t, told(b))
}

// TestProbes: one at a time, after a pause that doubles. Half of it is left to chance.
func TestProbes(t *testing.T) {
	b := opened(t, 0)
	now, pause := int64(0), 100*ms
	for range 8 {
		due := b.NextTry()
		assert.GreaterOrEqual(t, due-now, pause/2)
		assert.LessOrEqual(t, due-now, pause)
		assert.False(t, b.Due(due-1))
		assert.True(t, b.Due(due))
		assert.False(t, b.Due(due+pause), "one at a time")
		now = due + 5*ms
		assert.False(t, first(b.Record(due, now, Failed, errSilence)), "it is open already")
		pause = min(2*pause, int64(time.Second))
	}
	assert.Equal(t, []Change{{Open: true, Err: errSilence}}, told(b), "once")
	b.Record(now, now, Answered, nil)
	for range failuresToOpen {
		b.Record(now, now, Failed, errSilence)
	}
	assert.LessOrEqual(t, b.NextTry()-now, 100*ms, "the next outage begins anew")
}

// TestNeutral: an answer that says nothing of the shard ends the probe, and another
// follows soon.
func TestNeutral(t *testing.T) {
	b := opened(t, 10)
	due := b.NextTry()
	require.True(t, b.Due(due))
	b.Record(9, due, Neutral, errSilence)
	assert.False(t, b.Due(due+200*ms), "that was not the probe")
	b.Record(due, due, Neutral, errSilence)
	assert.True(t, b.Open.Load())
	assert.False(t, b.Due(due+100*ms-1))
	assert.True(t, b.Due(due+100*ms))

	b.Record(10, due, Neutral, errSilence)
	assert.True(t, b.Due(due+100*ms), "sent at the instant of the change, it was")

	var closed Breaker
	for range failuresToOpen {
		closed.Record(0, 0, Neutral, errSilence)
		closed.Record(0, 0, Failed, errSilence)
	}
	assert.True(t, closed.Open.Load(), "it interrupts no row")
	at := closed.NextTry()
	closed.Record(0, 0, Neutral, nil)
	assert.Equal(t, at, closed.NextTry())
}

// TestStaleFailures: calls that were under way when the breaker opened or closed
// neither delay a probe, nor pass for its outcome, nor open it again.
func TestStaleFailures(t *testing.T) {
	at := int64(time.Second)
	b := opened(t, at)
	due := b.NextTry()
	for range 50 {
		b.Record(at-1, at+1, Failed, errSilence)
	}
	require.Equal(t, due, b.NextTry())
	require.True(t, b.Due(due))
	b.Record(at-1, due, Failed, errSilence)
	assert.False(t, b.Due(due+2*int64(longestPause)), "one at a time")
	_, closed := b.Record(due, due+2, Answered, nil)
	assert.True(t, closed, "calls go on")
	for range 50 {
		b.Record(due+1, due+3, Failed, errSilence)
	}
	assert.False(t, b.Open.Load())
	for range failuresToOpen {
		b.Record(due+2, due+3, Failed, errSilence)
	}
	assert.True(t, b.Open.Load(), "these were sent after it had closed")
}

// TestRejected: a shard that rejects every call answers. It is told once, and once
// again when a second has passed without a rejection.
func TestRejected(t *testing.T) {
	var b Breaker
	sec := int64(time.Second)
	for range 10 * failuresToOpen {
		b.Record(0, 7, Rejected, errPassword)
		require.False(t, b.Open.Load())
	}
	assert.Equal(t, []Change{{Rejecting: true, Err: errPassword}}, told(&b))
	assert.NoError(t, b.Cause(), "it is not open")
	b.Record(sec, 6+sec, Answered, nil)
	assert.Empty(t, told(&b), "others are rejected still, perhaps")
	b.Record(sec, 7+sec, Answered, nil)
	assert.Equal(t, []Change{{}}, told(&b))
	b.Record(sec, 8+sec, Answered, nil)
	assert.Empty(t, told(&b))
	b.Record(0, 9+sec, Rejected, errPassword)
	assert.Equal(t, []Change{{Rejecting: true, Err: errPassword}}, told(&b), "again")
}

// TestOneStateAtATime: a shard is well, away or rejecting, and each change is told once.
func TestOneStateAtATime(t *testing.T) {
	b := opened(t, 0)
	b.Record(1, 1, Rejected, errPassword)
	assert.False(t, b.Open.Load())
	for range failuresToOpen {
		b.Record(2, 2, Failed, errSilence)
	}
	b.Record(3, 3, Answered, nil)
	assert.Equal(t, []Change{
		{Open: true, Err: errSilence}, {Rejecting: true, Err: errPassword}, {Open: true, Err: errSilence}, {},
	}, told(b))
}

// TestReset closes the breaker of a shard that is forgotten.
func TestReset(t *testing.T) {
	b := opened(t, 0)
	require.True(t, b.Due(b.NextTry()))
	b.Reset(9)
	assert.False(t, b.Open.Load())
	assert.Equal(t, []Change{{Open: true, Err: errSilence}, {}}, told(b))
	for range failuresToOpen {
		assert.False(t, b.Open.Load())
		b.Record(9, 9, Failed, errSilence)
	}
	assert.True(t, b.Open.Load())
	assert.LessOrEqual(t, b.NextTry(), 9+100*ms)
	assert.True(t, b.Due(b.NextTry()))
}

// TestReport: in order, one at a time, with no lock held, though the hook panics.
func TestReport(t *testing.T) {
	b := opened(t, 0)
	b.Record(1, 1, Answered, nil)
	var seen []Change
	assert.Panics(t, func() { b.Report(func(c Change) { seen = append(seen, c); panic("hook") }) })
	b.Report(func(c Change) {
		seen = append(seen, c)
		if len(seen) < 4 {
			for range failuresToOpen {
				b.Record(2, 2, Failed, errSilence)
			}
			b.Record(3, 3, Answered, nil)
			b.Report(func(Change) { t.Error("two at a time") })
		}
	})
	assert.Equal(t, []Change{{Open: true, Err: errSilence}, {}, {Open: true, Err: errSilence}, {}}, seen)
}

// TestReportInOrder: of all goroutines that record changes one reports, and none of
// them is lost.
func TestReportInOrder(t *testing.T) {
	var b Breaker
	var mu sync.Mutex
	open, changes := false, 0
	hook := func(c Change) {
		mu.Lock()
		defer mu.Unlock()
		if c.Open == open {
			t.Error("told twice, or out of order")
		}
		open = c.Open
		changes++
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				for range failuresToOpen {
					b.Record(1, 1, Failed, errSilence)
				}
				b.Report(hook)
				b.Record(1, 1, Answered, nil)
				b.Report(hook)
			}
		})
	}
	wg.Wait()
	assert.Empty(t, told(&b))
	assert.Equal(t, b.Open.Load(), open)
	assert.Positive(t, changes)
}

// TestLead: the mean and four mean deviations, as TCP estimates a round trip.
func TestLead(t *testing.T) {
	var b Breaker
	b.ObserveLead(8 * time.Millisecond)
	assert.Equal(t, (8+4*4+1)*time.Millisecond, time.Duration(b.Lead.Load()))
	b.ObserveLead(16 * time.Millisecond) // the deviation is 4 + (8-4)/4, the mean 8 + 8/8
	assert.Equal(t, (9+4*5+1)*time.Millisecond, time.Duration(b.Lead.Load()))
	b.ObserveLead(1 * time.Millisecond) // 5 + (8-5)/4, 9 - 8/8
	assert.Equal(t, (8+4*5+3+1)*time.Millisecond, time.Duration(b.Lead.Load()))
}

// TestRejectionsAreWatched: from the first one on a probe is to find out, when the shard
// has been calm for a while, whether it serves again.
func TestRejectionsAreWatched(t *testing.T) {
	b := new(Breaker)
	assert.False(t, b.Watched())
	assert.True(t, first(b.Record(1, 5, Rejected, errPassword)))
	assert.True(t, b.Watched())
	assert.False(t, first(b.Record(2, 6, Rejected, errPassword)), "it is watched already")
	assert.Equal(t, 6+int64(calm), b.NextTry())
	assert.False(t, b.Due(5+int64(calm)))
	assert.True(t, b.Due(6+int64(calm)))
	b.Record(6+int64(calm), 6+int64(calm), Answered, nil)
	assert.False(t, b.Watched())
	assert.True(t, opened(t, 0).Watched())
}

// TestResetAfterARejection: a shard that has no keys any more needs no probes, though it has rejected a call just now.
func TestResetAfterARejection(t *testing.T) {
	var b Breaker
	b.Record(1, 1, Rejected, errPassword)
	assert.True(t, b.Watched())
	b.Reset(2)
	assert.False(t, b.Watched())
	assert.Equal(t, []Change{{Rejecting: true, Err: errPassword}, {}}, told(&b))
}
