package denial

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/internal/invariant"
)

const (
	ms     = int64(time.Millisecond)
	window = time.Minute // of which a twentieth is 3 s
	long   = 10_000 * time.Hour
)

// TestDeny: until the end, or this process' turn to probe, or until tokens may come back from others.
func TestDeny(t *testing.T) {
	var d Denial
	d.Deny(7, 1000*ms, long, window)
	assert.EqualValues(t, 1000*ms, d.Until, "its turn does not come")
	d.Deny(7, 1000*ms, 0, window)
	assert.EqualValues(t, 7, d.Until, "it is its turn")
	d.Ask = 500 * ms
	d.Deny(7, 1000*ms, long, window)
	assert.EqualValues(t, 500*ms, d.Until, "some may come back")
	d.Deny(7, 400*ms, long, window)
	assert.EqualValues(t, 400*ms, d.Until, "but not before the end")
	d.Deny(500*ms, 1000*ms, long, window)
	assert.EqualValues(t, 1000*ms, d.Until, "they should be back")
	d.Open()
	assert.Zero(t, d.Until)

	d = Denial{}
	var sum int64
	for range 4000 {
		d.Deny(7, 1<<60, time.Second, window)
		sum += d.Until - 7
	}
	assert.InEpsilon(t, int64(time.Second), sum/4000, 0.1, "the mean between two turns")
}

// TestProbe: one caller causes a probe once the denial is over, and the next one a twentieth of the window later.
func TestProbe(t *testing.T) {
	d := Denial{State: Denied, Until: 10}
	assert.False(t, d.Probe(9, window))
	assert.True(t, d.Probe(10, window))
	assert.False(t, d.Probe(10+3000*ms-1, window))
	assert.True(t, d.Probe(10+3000*ms, window))
}

// TestAskLimit: a refused key asks for its limit 20 times in a window, a Reset or not.
func TestAskLimit(t *testing.T) {
	var d Denial
	assert.False(t, d.AskLimit(5, window), "it refuses nobody")
	d.Deny(5, 1<<60, long, window)
	assert.EqualValues(t, 5+3000*ms, d.Recheck)
	assert.False(t, d.AskLimit(5+3000*ms-1, window))
	d.Deny(6, 1<<60, long, window)
	assert.EqualValues(t, 5+3000*ms, d.Recheck, "it is not put off")
	assert.True(t, d.AskLimit(5+3000*ms, window))
	assert.False(t, d.AskLimit(5+3000*ms, window))
	d.Deny(5+6000*ms, 1<<60, long, window)
	assert.EqualValues(t, 5+9000*ms, d.Recheck, "it is, if it is due")
	d.Ask, d.asks, d.ends = 1, 1, 1
	d.Reset()
	assert.Equal(t, Denial{Recheck: 5 + 9000*ms}, d)
}

// TestWaited: a statement has given others time if it comes when callers were to ask again. It gives up once the last wait has ended,
// unless that was so long ago that these are other callers.
func TestWaited(t *testing.T) {
	for _, row := range []struct {
		now, ask, ends int64
		asks           int8
		waited, gaveUp bool
	}{
		{5, 0, 0, 0, false, false},
		{4, 5, 9, 1, false, false},
		{9, 0, 9, 1, false, false},
		{5, 5, 9, 1, true, false},
		{9, 5, 9, 1, true, true},
		{9, 5, 9, 0, true, false},
		{9 + 100*ms, 5, 9, 1, true, true},
		{10 + 100*ms, 5, 9, 1, true, false},
	} {
		d := Denial{Ask: row.ask, from: row.ends - 100*ms, ends: row.ends, asks: row.asks}
		waited, gaveUp := d.Waited(row.now)
		assert.Equal(t, []bool{row.waited, row.gaveUp}, []bool{waited, gaveUp}, "%+v", row)
	}
}

// TestAwait: each row is replies that come when callers asked again, the first at 0, after a trip. They bring nothing, and callers wait for
// others for 100 ms at most.
func TestAwait(t *testing.T) {
	type wait struct{ least, most int64 } // ns until callers ask again
	never := wait{-1, -1}                 // they do not wait for others
	first := wait{4 * ms, 6 * ms}         // a half to three quarters of a trip of 8 ms
	reply := func(change func(r *Reply)) Reply {
		r := Reply{Trip: 8 * time.Millisecond, Called: true, InVain: true, Patience: 100 * time.Millisecond}
		if change != nil {
			change(&r)
		}
		return r
	}
	vain, some := reply(nil), reply(func(r *Reply) { r.Some = true })
	near, far := reply(func(r *Reply) { r.Trip = 0 }), reply(func(r *Reply) { r.Trip = 30 * time.Millisecond })
	farther := reply(func(r *Reply) { r.Trip = time.Second })
	for _, row := range []struct {
		name    string
		replies []Reply
		waits   []wait
	}{
		{"nobody lies idle", []Reply{reply(func(r *Reply) { r.Served = true })}, []wait{never}},
		{"near: spread over the patience, and the fourth is the last, at its end", []Reply{near, near, near, near, near},
			[]wait{{1 * ms, 2 * ms}, {3 * ms, 5 * ms}, {15 * ms, 21 * ms}, {70 * ms, 80 * ms}, never}},
		{"three times as late each", []Reply{vain, vain, vain, vain}, []wait{first, {22 * ms, 30 * ms}, {30 * ms, 60 * ms}, never}},
		{"far: the second is the last", []Reply{far, far, far}, []wait{{15 * ms, 23 * ms}, {40 * ms, 60 * ms}, never}},
		{"no longer than callers wait", []Reply{farther, farther}, []wait{{100 * ms, 100 * ms}, never}},
		{"until tokens come", []Reply{vain, vain, some, vain}, []wait{first, {22 * ms, 30 * ms}, first, {22 * ms, 30 * ms}}},
		{"until the statement gives up", []Reply{vain, reply(func(r *Reply) { r.GaveUp = true })}, []wait{first, never}},
		{"not in vain, and others are called", []Reply{reply(func(r *Reply) { r.InVain = false })}, []wait{first}},
		{"others will be called", []Reply{reply(func(r *Reply) { r.InVain, r.Called = false, false })}, []wait{{0, 0}}},
	} {
		var d Denial
		now := int64(0)
		for i, r := range row.replies {
			got := int64(-1)
			if _, gaveUp := d.Waited(now); gaveUp {
				r.GaveUp = true
			}
			now += int64(r.Trip)
			if i == 0 {
				now = 0
			}
			if d.Await(r, now) {
				got = max(d.Ask-now, 0)
				now = max(now, d.Ask)
			}
			assert.True(t, row.waits[i].least <= got && got <= row.waits[i].most, "%s: reply %d: %d ns", row.name, i, got)
			assert.Equal(t, d.Ask != 0, d.State == Recalled, row.name)
		}
	}

	var d Denial
	d.Await(vain, 0)
	d.Await(vain, 200*ms)
	assert.Equal(t, 200*ms+1, d.Ask, "the wait is over")
	d.Await(vain, 200*ms+1)
	assert.Greater(t, d.Ask, 204*ms, "that was for other callers")
	for asks := range 20 {
		d = Denial{asks: int8(asks), ends: ms}
		d.Await(reply(func(r *Reply) { r.GaveUp = true }), 0)
		times := int64(1) << max(0, min(asks+1, 9)-4)
		assert.True(t, 4*ms*times < d.Ask && d.Ask <= 6*ms*times, "after %d, probes twice as rarely: %d", asks, d.Ask)
	}
	d.Await(reply(func(r *Reply) { r.Served = true }), 0)
	assert.Zero(t, d)
}

// TestLook: a held key looks once in a window whether it is still held, and a caller whom it refuses then causes the probe. A hold that is
// made longer puts off no look.
func TestLook(t *testing.T) {
	d := Denial{State: Denied, Until: 3, Ask: 5}
	d.Hold(7, int64(10*window), window)
	assert.EqualValues(t, 7+int64(window), d.Look)
	assert.Zero(t, d.Ask, "nobody is called for")
	assert.EqualValues(t, 7+3000*ms, d.Recheck)
	d.Hold(9, int64(11*window), window)
	assert.EqualValues(t, int64(11*window), d.Until)
	assert.EqualValues(t, 7+int64(window), d.Look)
	assert.False(t, d.Probe(7+int64(window)-1, window))
	assert.True(t, d.Probe(7+int64(window), window))
	assert.EqualValues(t, 7+2*int64(window), d.Look)
}

// TestStates: each event leads from each state to the one that is drawn, and a wrong step is noticed.
func TestStates(t *testing.T) {
	called := Reply{Called: true, InVain: true, Patience: time.Second}
	for name, row := range map[string]struct {
		event func(d *Denial)
		to    [4]State // from Open, Recalled, Denied, Held
	}{
		"refused":          {func(d *Denial) { d.Deny(7, 100, long, window) }, [4]State{Denied, Denied, Denied, Held}},
		"some came back":   {func(d *Denial) { d.Open() }, [4]State{Open, Recalled, Open, Held}},
		"a Reset":          {func(d *Denial) { d.Reset() }, [4]State{Open, Open, Open, Open}},
		"somebody holds":   {func(d *Denial) { d.Hold(7, 9, window) }, [4]State{Held, Held, Held, Held}},
		"the hold lasts":   {func(d *Denial) { d.Expire(8) }, [4]State{Open, Recalled, Denied, Held}},
		"the hold is over": {func(d *Denial) { d.Expire(9) }, [4]State{Open, Recalled, Denied, Open}},
		"others lie idle":  {func(d *Denial) { d.Await(called, 7) }, [4]State{Recalled, Recalled, Recalled, Held}},
		"nobody lies idle": {func(d *Denial) { d.Await(Reply{Served: true}, 7) }, [4]State{Open, Open, Open, Held}},
	} {
		for from, to := range row.to {
			d := [4]Denial{{}, {State: Recalled, Ask: 9}, {State: Denied, Until: 9}, {State: Held, Until: 9, Look: 99}}[from]
			row.event(&d)
			assert.Equal(t, to, d.State, "%s, from %d", name, from)
			assert.Equal(t, to >= Denied, d.Until != 0, name)
		}
	}
	if invariant.Enabled {
		assert.Panics(t, func() { new(Denial).Probe(7, window) }, "nobody is refused")
		assert.Panics(t, func() { new(Denial).to(Recalled, 0) }, "nobody was called")
		assert.Panics(t, func() { new(Denial).to(Denied, 0) }, "without an end")
	}
}
