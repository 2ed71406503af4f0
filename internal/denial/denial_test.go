package denial

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
	assert.EqualValues(t, 1000*ms, d.Until(), "its turn does not come")
	d.Deny(7, 1000*ms, 0, window)
	assert.EqualValues(t, 7, d.Until(), "it is its turn")
	d.again = 500 * ms
	d.Deny(7, 1000*ms, long, window)
	assert.EqualValues(t, 500*ms, d.Until(), "some may come back")
	d.Deny(7, 400*ms, long, window)
	assert.EqualValues(t, 400*ms, d.Until(), "but not before the end")
	d.Deny(500*ms, 1000*ms, long, window)
	assert.EqualValues(t, 1000*ms, d.Until(), "they should be back")
	d.Open()
	assert.Zero(t, d.Until())

	d = Denial{}
	var sum int64
	for range 4000 {
		d.Deny(7, 1<<60, time.Second, window)
		sum += d.Until() - 7
	}
	assert.InEpsilon(t, int64(time.Second), sum/4000, 0.1, "the mean between two turns")
}

// TestTold: who was told that the limit is used up waits four times as long, but not beyond the end.
func TestTold(t *testing.T) {
	d := Denial{until: 110}
	d.Told(100, 1000)
	assert.EqualValues(t, 140, d.Until())
	d.Told(100, 200)
	assert.EqualValues(t, 200, d.Until())
}

// TestProbe: one caller causes a probe once the denial is over, and the next one a twentieth of the window later.
func TestProbe(t *testing.T) {
	d := Denial{until: 10}
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
	assert.EqualValues(t, 5+3000*ms, d.Recheck())
	assert.False(t, d.AskLimit(5+3000*ms-1, window))
	d.Deny(6, 1<<60, long, window)
	assert.EqualValues(t, 5+3000*ms, d.Recheck(), "it is not put off")
	assert.True(t, d.AskLimit(5+3000*ms, window))
	assert.False(t, d.AskLimit(5+3000*ms, window))
	d.Deny(5+6000*ms, 1<<60, long, window)
	assert.EqualValues(t, 5+9000*ms, d.Recheck(), "it is, if it is due")
	d.again, d.asked, d.ends = 1, 1, 1
	d.Reset()
	assert.Equal(t, Denial{recheck: 5 + 9000*ms}, d)
}

// TestWaited: a statement has given others time if it comes when callers were to ask again. It gives up once the last wait has ended,
// unless that was so long ago that these are other callers.
func TestWaited(t *testing.T) {
	for _, row := range []struct {
		now, again, ends int64
		asked            int8
		waited, gaveUp   bool
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
		d := Denial{again: row.again, ends: row.ends, asked: row.asked}
		waited, gaveUp := d.Waited(row.now, 100*time.Millisecond)
		assert.Equal(t, []bool{row.waited, row.gaveUp}, []bool{waited, gaveUp}, "%+v", row)
	}
}

// TestAwait: each row is replies that come when callers asked again, the first at 0, after 8 ms on their way. They bring nothing, and
// callers wait for others for 100 ms at most. A wait is a half to three quarters of a round trip.
func TestAwait(t *testing.T) {
	type wait struct{ least, most int64 } // ns until callers ask again
	first, second, third := wait{4 * ms, 6 * ms}, wait{2 * ms, 2 * ms}, wait{12 * ms, 18 * ms}
	never := wait{-1, -1} // they do not wait for others
	reply := func(change func(r *Reply)) Reply {
		r := Reply{Trip: 8 * time.Millisecond, Called: true, InVain: true, Longest: 100 * time.Millisecond}
		if change != nil {
			change(&r)
		}
		return r
	}
	vain, some := reply(nil), reply(func(r *Reply) { r.Some = true })
	near, far := reply(func(r *Reply) { r.Trip = 0 }), reply(func(r *Reply) { r.Trip = time.Second })
	for _, row := range []struct {
		name    string
		replies []Reply
		waits   []wait
	}{
		{"nobody lies idle", []Reply{reply(func(r *Reply) { r.Served = true })}, []wait{never}},
		{"ever more rarely", []Reply{vain, vain, vain}, []wait{first, second, third}},
		{"the fourth is the last, at the end", []Reply{vain, vain, vain, vain, vain}, []wait{first, second, third, {74 * ms, 82 * ms}, never}},
		{"as long as a busy machine needs", []Reply{near, near}, []wait{{1 * ms, 2 * ms}, second}},
		{"no longer than callers wait", []Reply{far, vain}, []wait{{100 * ms, 100 * ms}, {1, 1}}},
		{"until tokens come", []Reply{vain, vain, some, vain}, []wait{first, second, first, second}},
		{"until the statement gives up", []Reply{vain, reply(func(r *Reply) { r.GaveUp = true })}, []wait{first, never}},
		{"not in vain, and others are called", []Reply{reply(func(r *Reply) { r.InVain = false })}, []wait{first}},
		{"others will be called", []Reply{reply(func(r *Reply) { r.InVain, r.Called = false, false })}, []wait{{0, 0}}},
	} {
		var d Denial
		now := int64(0)
		for i, r := range row.replies {
			got := int64(-1)
			if d.Await(r, now) {
				got = max(d.Again()-now, 0)
				now = max(now, d.Again())
			}
			assert.True(t, row.waits[i].least <= got && got <= row.waits[i].most, "%s: reply %d: %d ns", row.name, i, got)
		}
	}

	var d Denial
	d.Await(vain, 0)
	d.Await(vain, 200*ms)
	assert.Equal(t, 200*ms+1, d.Again(), "the wait is over")
	d.Await(vain, 200*ms+1)
	assert.Greater(t, d.Again(), 204*ms, "that was for other callers")
	for asked := range 20 {
		d = Denial{asked: int8(asked), ends: ms}
		d.Await(reply(func(r *Reply) { r.Trip, r.GaveUp = 8*time.Millisecond, true }), 0)
		times := int64(1) << max(0, min(asked+1, 9)-4)
		assert.True(t, 4*ms*times < d.Again() && d.Again() <= 6*ms*times, "after %d, probes twice as rarely: %d", asked, d.Again())
	}
	d.Await(reply(func(r *Reply) { r.Served = true }), 0)
	assert.Zero(t, d)
}
