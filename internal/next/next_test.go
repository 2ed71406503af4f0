package next

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A key in use at 100, halfway through a window that is over at 200. It looks again
// when its turn comes in the next window, at 211.
func base() Facts {
	return Facts{Now: 100, Alive: true, Over: 200, Spread: 10, Used: true, Regular: true}
}

// TestStep: one row for each rule and each of its boundaries.
func TestStep(t *testing.T) {
	for _, row := range []struct {
		name  string
		facts func(f *Facts)
		cause Cause
		at    int64
	}{
		{"nobody has used it", func(f *Facts) { *f = Facts{Now: 100} }, None, Never},
		{"in use", func(f *Facts) {}, None, 211},
		{"used once", func(f *Facts) { f.Regular = false }, None, Never},

		{"closed", func(f *Facts) { f.Closed, f.Active, f.Passing = true, 1, 1 }, None, Never},
		{"a fetch is in flight", func(f *Facts) { f.InFlight, f.Active, f.Passing = true, 1, 1 }, None, Never},
		{"away", func(f *Facts) { f.Open, f.Ask = true, 150 }, None, Never},
		{"away, and the stock is low", func(f *Facts) { f.Open, f.Ask, f.Low = true, 150, true }, Prefetch, Never},
		{"away, and the low stock is over", func(f *Facts) { f.Open, f.Ask, f.Low, f.Alive = true, 150, true, false }, None, Never},
		{"away, and a caller waits", func(f *Facts) { f.Open, f.Ask, f.Active = true, 150, 1 }, Waiters, Never},
		{"away, and a caller stays", func(f *Facts) { f.Open, f.Ask, f.Parked = true, 150, 1 }, Waiters, Never},
		{"away, and a caller who stays is in line", func(f *Facts) { f.Open, f.Ask, f.Parked, f.InLine = true, 150, 1, Callers }, None, 150},
		{"away, with debt", func(f *Facts) { f.Open, f.Ask, f.Charge = true, 150, 1 }, Charge, Never},
		{"away, with debt in line", func(f *Facts) { f.Open, f.Charge, f.InLine = true, 150, Rest }, None, Never},
		{"away, with debt in line and a low stock", func(f *Facts) { f.Open, f.Low, f.Charge, f.InLine = true, true, 150, Rest }, None, Never},
		{"away, with debt in line, and a caller stays", func(f *Facts) { f.Open, f.Ask, f.Active, f.Charge, f.InLine = true, 150, 1, 150, Rest }, Waiters, Never},
		{"away, with returns", func(f *Facts) { f.Open, f.Ask, f.Unconfirmed = true, 150, true }, Return, Never},
		{"away, with returns in line", func(f *Facts) { f.Open, f.Unconfirmed, f.InLine = true, true, Rest }, None, Never},

		{"one who stays is in line", func(f *Facts) { f.Active, f.InLine = 1, Callers }, None, 211},
		{"and another one passes", func(f *Facts) { f.Active, f.Passing, f.InLine = 2, 1, Callers }, Waiters, Never},
		{"debt in line, and one is parked", func(f *Facts) { f.Charge, f.InLine, f.Parked, f.Denied = 1, Rest, 1, 150 }, None, 150},
		{"debt in line, and the stock is low", func(f *Facts) { f.Charge, f.InLine, f.Low = 1, Rest, true }, Prefetch, Never},
		{"returns in line, and debt is due", func(f *Facts) { f.Charge, f.Unconfirmed, f.InLine = 100, true, Rest }, None, 211},
		{"returns in line, and one who stays", func(f *Facts) { f.Active, f.Unconfirmed, f.InLine = 1, true, Rest }, Waiters, Never},
		{"one who stays is in line, and returns", func(f *Facts) { f.Active, f.Unconfirmed, f.InLine = 1, true, Callers }, None, 211},
		{"a reset in line", func(f *Facts) { f.Now, f.InLine = 210, Rest }, None, Never},

		{"a caller waits", func(f *Facts) { f.Active, f.Passing = 1, 1 }, Waiters, Never},
		{"a caller waits, after a failure", func(f *Facts) { f.Active, f.Passing, f.Backoff = 1, 1, 150 }, Waiters, Never},
		{"one who stays waits", func(f *Facts) { f.Active, f.Backoff = 1, 100 }, Waiters, Never},
		{"one who stays waits, after a failure", func(f *Facts) { f.Active, f.Backoff = 1, 101 }, None, 101},
		{"and after a rejection", func(f *Facts) { f.Active, f.Backoff, f.Rejected = 1, 101, true }, Waiters, Never},
		{"the store has the old window still", func(f *Facts) { f.Active, f.Passing, f.Ending, f.Over, f.Regular = 1, 1, true, 100, false }, None, 100 + 1e6},
		{"and no more", func(f *Facts) { f.Active, f.Passing, f.Ending, f.Over = 1, 1, true, 99 }, Waiters, Never},
		{"called tokens may come back until then", func(f *Facts) { f.Active, f.Passing, f.Recall = 1, 1, 101 }, None, 101},
		{"and now they should be back", func(f *Facts) { f.Active, f.Passing, f.Recall = 1, 1, 100 }, Waiters, Never},
		{"they come back after a failure", func(f *Facts) { f.Active, f.Recall, f.Backoff = 1, 100, 150 }, None, 150},
		{"one who is parked waits for no recall", func(f *Facts) { f.Parked, f.Denied, f.Recall = 1, 150, 110 }, None, 150},
		{"the store has the old window still, and nothing of it comes back", func(f *Facts) {
			f.Active, f.Passing, f.Ending, f.Over, f.Recall, f.Regular = 1, 1, true, 100, 110, false
		}, None, 100 + 1e6},
		{"one is parked until the reset", func(f *Facts) { f.Parked, f.Denied, f.Spread = 1, 300, 40 }, None, 211},
		{"one is parked until a probe is due", func(f *Facts) { f.Parked, f.Denied = 1, 150 }, None, 150},
		{"that is due now", func(f *Facts) { f.Parked, f.Denied = 1, 100 }, None, 101},
		{"one is parked, after a failure", func(f *Facts) { f.Parked, f.Denied, f.Backoff = 1, 150, 160 }, None, 160},

		{"debt", func(f *Facts) { f.Charge, f.Backoff = 1, 100 }, Charge, Never},
		{"debt that is not due", func(f *Facts) { f.Charge = 101 }, None, 101},
		{"debt that has become due", func(f *Facts) { f.Charge = 100 }, Charge, Never},
		{"debt does not wait for a recall", func(f *Facts) { f.Active, f.Recall, f.Charge = 1, 150, 100 }, Charge, Never},
		{"debt, after a failure", func(f *Facts) { f.Charge, f.Backoff = 1, 101 }, None, 101},
		{"returns", func(f *Facts) { f.Unconfirmed = true }, Return, Never},
		{"returns, after a failure", func(f *Facts) { f.Unconfirmed, f.Backoff = true, 101 }, None, 101},
		{"a probe is due", func(f *Facts) { f.Probe = true }, Probe, Never},
		{"a probe, after a failure", func(f *Facts) { f.Probe, f.Backoff = true, 101 }, None, 101},

		{"held, and the store has not heard", func(f *Facts) { f.Held, f.Unsaid, f.Denied = true, true, 150 }, Hold, Never},
		{"that, after a failure", func(f *Facts) { f.Held, f.Unsaid, f.Denied, f.Backoff = true, true, 150, 110 }, None, 110},
		{"that, and away", func(f *Facts) { f.Open, f.Held, f.Unsaid, f.Denied = true, true, true, 150 }, Hold, Never},
		{"that, in line", func(f *Facts) { f.Open, f.Held, f.Unsaid, f.Denied, f.InLine = true, true, true, 150, Rest }, None, 150},
		{"held, and away", func(f *Facts) { f.Open, f.Held, f.Denied = true, true, 150 }, None, 150},
		{"held, and one is parked", func(f *Facts) { f.Held, f.Parked, f.Denied, f.Over = true, 1, 150, 0 }, None, 150},
		{"held, and one is parked beyond the window", func(f *Facts) { f.Held, f.Parked, f.Denied, f.Regular = true, 1, 300, false }, None, 300},
		{"held, one is parked, and away", func(f *Facts) { f.Open, f.Ask, f.Held, f.Parked, f.Denied = true, 120, true, 1, 150 }, None, 150},
		{"held, and a look is due", func(f *Facts) { f.Held, f.Probe, f.Denied = true, true, 150 }, Probe, Never},

		{"no window was heard of", func(f *Facts) { f.Over, f.Low, f.Surplus = 0, true, 9 }, None, Never},
		{"the window ends now", func(f *Facts) { f.Now = 200 }, None, 211},
		{"over, and others go first", func(f *Facts) { f.Now = 201 }, None, 210},
		{"over, and our turn", func(f *Facts) { f.Now = 210 }, Reset, Never},
		{"over, after a failure", func(f *Facts) { f.Now, f.Backoff = 210, 211 }, None, 211},
		{"over, and not used in it", func(f *Facts) { f.Now, f.Used = 300, false }, None, Never},
		{"over, and seldom used", func(f *Facts) { f.Now, f.Regular = 300, false }, None, Never},
		{"over, with a surplus that is dead", func(f *Facts) { f.Now, f.Surplus = 201, 9 }, None, 210},

		{"the last bucket is about to end", func(f *Facts) { f.Renew = 100 }, Renew, Never},
		{"it will be", func(f *Facts) { f.Renew = 101 }, None, 101},
		{"it is, after a failure", func(f *Facts) { f.Renew, f.Backoff = 90, 101 }, None, 101},
		{"it is over", func(f *Facts) { f.Renew, f.Alive = 90, false }, None, 211},
		{"a surplus", func(f *Facts) { f.Surplus = 1 }, Return, Never},
		{"a surplus, and the pause is over", func(f *Facts) { f.Surplus, f.Backoff = 1, 100 }, Return, Never},
		{"a surplus, after a failure", func(f *Facts) { f.Surplus, f.Backoff = 1, 101 }, None, 101},
		{"others call, when it is about to end", func(f *Facts) { f.Recalled, f.Alive = true, false }, None, 211},
		{"a look for it later", func(f *Facts) { f.Look = 150 }, None, 150},
		{"and not at once", func(f *Facts) { f.Look = 100 }, None, 101},
		{"a look after the reset", func(f *Facts) { f.Look = 999 }, None, 211},
		{"the stock is low", func(f *Facts) { f.Low, f.Backoff = true, 100 }, Prefetch, Never},
		{"low, after a failure", func(f *Facts) { f.Low, f.Backoff = true, 101 }, None, 101},
		{"low, after a failure, and seldom used", func(f *Facts) { f.Low, f.Backoff, f.Regular = true, 101, false }, None, 101},
		{"low, and about to end", func(f *Facts) { f.Low, f.Alive = true, false }, None, 211},
	} {
		f := base()
		row.facts(&f)
		cause, _, at := Step(f)
		assert.Equal(t, fmt.Sprint(row.cause, " ", row.at), fmt.Sprint(cause, " ", at), row.name)
	}
}

// TestEarliest: of all times to look again it is the earliest.
func TestEarliest(t *testing.T) {
	late := func(f *Facts) { f.Parked, f.Denied, f.Renew, f.Look, f.Low, f.Backoff = 1, 190, 180, 170, false, 0 }
	for i, want := range []int64{170, 160, 150, 140, 122} {
		f := base()
		late(&f)
		for j := range i {
			[]func(){
				func() { f.Look = 160 },
				func() { f.Renew = 150 },
				func() { f.Denied = 140 },
				func() { f.Over = 119 },
			}[j]()
		}
		_, _, at := Step(f)
		assert.Equal(t, want, at)
	}
	f := base()
	f.Charge, f.Backoff, f.Over, f.Parked, f.Denied = 1, 120, 0, 1, 110
	_, _, at := Step(f)
	assert.EqualValues(t, 120, at, "the account's")
}

// TestPriority: with two reasons for a call the earlier in this list counts.
func TestPriority(t *testing.T) {
	order := []struct {
		cause Cause
		facts func(f *Facts)
	}{
		{Waiters, func(f *Facts) { f.Active, f.Passing = 1, 1 }},
		{Charge, func(f *Facts) { f.Charge = 1 }},
		{Return, func(f *Facts) { f.Unconfirmed = true }},
		{Probe, func(f *Facts) { f.Probe = true }},
		{Reset, func(f *Facts) { f.Now = 210 }}, // excludes those below
		{Renew, func(f *Facts) { f.Renew = f.Now }},
		{Return, func(f *Facts) { f.Surplus = 1 }},
		{Return, func(f *Facts) { f.Recalled = true }},
		{Prefetch, func(f *Facts) { f.Low = true }},
	}
	for i, first := range order {
		for _, second := range order[i:] {
			f := base()
			second.facts(&f)
			first.facts(&f)
			cause, _, at := Step(f)
			assert.Equal(t, first.cause, cause, "and %s", second.cause)
			assert.EqualValues(t, Never, at)
		}
	}
}

// TestClass: a call for which a request waits, or which it has just caused, is made at once.
func TestClass(t *testing.T) {
	for _, row := range []struct {
		why   Cause
		facts func(f *Facts)
		class Class
	}{
		{Waiters, func(f *Facts) { f.Active, f.Passing = 1, 1 }, AtOnce},
		{Waiters, func(f *Facts) { f.Active, f.Passing, f.Open = 1, 1, true }, Callers},
		{Waiters, func(f *Facts) { f.Active = 1 }, Callers},
		{Probe, func(f *Facts) { f.Probe = true }, AtOnce},
		{Probe, func(f *Facts) { f.Probe, f.Unconfirmed, f.InLine = true, true, Rest }, AtOnce},
		{Prefetch, func(f *Facts) { f.Low = true }, Callers},
		{Prefetch, func(f *Facts) { f.Low, f.Open = true, true }, Rest},
		{Charge, func(f *Facts) { f.Charge, f.Recalled = 1, true }, Rest},
		{Return, func(f *Facts) { f.Unconfirmed = true }, Rest},
		{Return, func(f *Facts) { f.Unconfirmed, f.Recalled = true, true }, Callers},
		{Return, func(f *Facts) { f.Unconfirmed, f.Recalled, f.Open = true, true, true }, Rest},
		{Return, func(f *Facts) { f.Surplus, f.Recalled, f.Renew, f.InLine = 1, true, 1, Rest }, Callers},
		{Reset, func(f *Facts) { f.Now = 210 }, Rest},
		{Renew, func(f *Facts) { f.Renew = 1 }, Rest},
	} {
		f := base()
		row.facts(&f)
		why, class, _ := Step(f)
		assert.Equal(t, row.why, why, "%+v", f)
		assert.Equal(t, row.class, class, "%s %+v", row.why, f)
	}
}
