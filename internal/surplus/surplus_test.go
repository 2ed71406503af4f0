package surplus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/backend"
)

const (
	sec    = int64(time.Second)
	window = time.Minute
)

var first, second = backend.Window{End: 1, Gen: 7}, backend.Window{End: 2, Gen: 7}

// TestLook: of a limit of 5,000 a minute, 50 tokens lie here at 100 s that nobody waits for. They are a hundredth.
func TestLook(t *testing.T) {
	for _, row := range []struct {
		name   string
		knows  Surplus
		change func(v *View)
		n, at  int64
	}{
		{"the store knows of all", Surplus{Known: 50}, nil, 0, 0},
		{"it knows of more, and has lost sight of some before", Surplus{Known: 60, Since: 1, Refunded: true}, nil, 0, 0},
		{"one it does not know of", Surplus{Known: 49}, nil, 0, 103 * sec},
		{"for a twentieth of the window", Surplus{Known: 49, Since: 97 * sec}, nil, 1, 0},
		{"not quite", Surplus{Known: 49, Since: 97*sec + 1}, nil, 0, 100*sec + 1},
		{"it cannot call any", Surplus{Known: -1, Since: 97 * sec}, nil, 50, 0},
		{"the limit runs short: a sixtieth", Surplus{Since: 99*sec + 1}, func(v *View) { v.Short = true }, 0, 100*sec + 1},
		{"more than a hundredth: at once", Surplus{Since: 99*sec + 1}, func(v *View) { v.Short, v.Idle = true, 51 }, 51, 0},
		{"a lead time after it was there", Surplus{}, func(v *View) { v.Short, v.Idle = true, 51 }, 0, 100*sec + sec/10},
		{"a long one", Surplus{}, func(v *View) { v.Short, v.Idle, v.Lead = true, 51, time.Minute }, 0, 101 * sec},
		{"what was settled, too", Surplus{Refunded: true}, func(v *View) { v.Short = true }, 0, 100*sec + sec/10},
		{"unless the store knows of some", Surplus{Refunded: true, Known: 1}, func(v *View) { v.Short = true }, 0, 101 * sec},
		{"or the limit does not run short", Surplus{Refunded: true}, nil, 0, 103 * sec},
		{"others want it", Surplus{Recalled: first, Known: 50}, nil, 50, 0},
		{"others wanted that of another window", Surplus{Recalled: second, Known: 50}, nil, 0, 0},
	} {
		v := View{Now: 100 * sec, Window: first, Idle: 50, Tokens: 5000, Length: window, Lead: time.Second / 10}
		if row.change != nil {
			row.change(&v)
		}
		n, at := row.knows.Look(v)
		assert.Equal(t, []int64{row.n, row.at}, []int64{n, at}, row.name)
		assert.Equal(t, row.knows.Recalled == first, row.knows.Recalled.End != 0, "%s: what was asked for another window is forgotten", row.name)
	}
	s := Surplus{Known: 60, Since: 1, Refunded: true}
	s.Look(View{Window: first, Idle: 50})
	assert.Equal(t, Surplus{Known: 60}, s, "nothing is unknown any more")
	s.Recall(first, false)
	s.Look(View{Window: first})
	assert.Zero(t, s.Known, "what is told goes")
}

// TestRecall: others want what is here of one window. Of a rolling limit the generation counts.
func TestRecall(t *testing.T) {
	for _, rolls := range []bool{false, true} {
		var s Surplus
		s.Recall(first, rolls)
		n, _ := s.Look(View{Window: second, Rolls: rolls, Idle: 5, Length: window})
		assert.Equal(t, rolls, n == 5)
		s.Recall(backend.Window{Gen: 7}, true)
		assert.Positive(t, s.Recalled.End)
	}
}

// TestHear: while no messages come, the store can call nothing. When they come again, what it has called in vain goes back.
func TestHear(t *testing.T) {
	var s Surplus
	s.Known = 9
	assert.False(t, s.Hear(true, true, 100*sec, window), "they came all the time")
	assert.EqualValues(t, 9, s.Known)
	assert.False(t, s.Hear(false, true, 100*sec, window))
	assert.EqualValues(t, -1, s.Known)
	again := s
	assert.True(t, s.Hear(true, true, 100*sec, window))
	assert.Equal(t, Surplus{Since: 40 * sec}, s)
	assert.True(t, again.Hear(true, false, 100*sec, window))
	assert.Equal(t, Surplus{}, again, "there is enough for all")
}

func TestDue(t *testing.T) {
	s := Surplus{Known: 3}
	assert.EqualValues(t, 103*sec, s.Due(100*sec, 3*time.Second))
	assert.EqualValues(t, 103*sec, s.Due(102*sec, 3*time.Second), "since the first look")
}
