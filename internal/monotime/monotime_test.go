package monotime

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = int64(time.Millisecond)

// fake is a clock whose two readings are the test's.
type fake struct {
	Clock
	wall, mono int64
	between    func() // between the two halves of a reading, once
}

func newFake() *fake {
	f := &fake{wall: 1 << 60}
	f.base = time.Now()
	f.lastGap.Store(f.wall)
	f.read = func() (wall, mono int64) {
		wall = f.wall
		if between := f.between; between != nil {
			f.between = nil
			between()
		}
		return wall, f.mono
	}
	return f
}

// pass lets so much time pass by both clocks, and more by the wall clock alone, and
// looks. It returns what counts as slept, in all.
func (f *fake) pass(both, more int64) int64 {
	f.wall, f.mono = f.wall+both+more, f.mono+both
	f.look(f.mono)
	return f.slept.Load()
}

// TestSuspension counts once, and whole.
func TestSuspension(t *testing.T) {
	f := newFake()
	assert.Zero(t, f.pass(20*ms, 0))
	assert.Equal(t, 60*ms, f.pass(20*ms, 60*ms))
	assert.Equal(t, 60*ms, f.pass(20*ms, 0))
	hour := int64(time.Hour)
	assert.Equal(t, hour+60*ms, f.pass(20*ms, hour))
	assert.Equal(t, hour+60*ms, f.pass(lookEvery-1, hour), "it does not look all the time")
	assert.Equal(t, 2*hour+60*ms, f.pass(1, 0))
	now := f.Now()
	assert.GreaterOrEqual(t, now, 2*hour)
	assert.Less(t, now, 3*hour)
}

// TestSlewing: a small step and slow drift are no suspension, however long nobody has
// looked.
func TestSlewing(t *testing.T) {
	f := newFake()
	assert.Zero(t, f.pass(10*ms, jump+10*ms/1000))
	assert.Zero(t, f.pass(48*int64(time.Hour), int64(48*time.Hour)/1000))
	assert.Equal(t, jump+2*ms/100+1, f.pass(20*ms, jump+2*ms/100+1), "but this is")
	for range 1000 {
		f.pass(time.Second.Nanoseconds(), -ms/2)
	}
	assert.Equal(t, jump+2*ms/100+1, f.slept.Load())
}

// TestSetBack: a wall clock that is set back takes nothing away.
func TestSetBack(t *testing.T) {
	f := newFake()
	assert.Zero(t, f.pass(20*ms, -int64(time.Hour)))
	assert.Equal(t, 60*ms, f.pass(20*ms, 60*ms), "a suspension after it counts whole")
}

// TestHeldUp: a goroutine is held up between the two halves of a reading, whichever is
// first. The clock does not jump, then or later.
func TestHeldUp(t *testing.T) {
	for _, late := range []struct{ wall, mono int64 }{{-100 * ms, 0}, {0, -100 * ms}} {
		f := newFake()
		wall, mono := f.wall+20*ms, f.mono+20*ms
		read, held := f.read, true
		f.read = func() (int64, int64) {
			if held {
				held = false
				return wall + late.wall, mono + late.mono
			}
			return read()
		}
		for range 3 {
			assert.Zero(t, f.pass(20*ms, 0), "%+v", late)
		}
		assert.Equal(t, 60*ms, f.pass(20*ms, 60*ms))
	}
}

// TestTwoLook: one is held up while it looks, and another one sees the same suspension.
func TestTwoLook(t *testing.T) {
	f := newFake()
	f.pass(20*ms, 0)
	f.between = func() { f.pass(20*ms, 0) }
	assert.Equal(t, int64(time.Minute), f.pass(20*ms, int64(time.Minute)))
	assert.Equal(t, int64(time.Minute), f.pass(20*ms, 0))
}

// TestNow: it begins at zero and goes as the monotonic clock does.
func TestNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		c.Init()
		for at := time.Duration(0); at < 48*time.Hour; at += at + time.Millisecond {
			require.Equal(t, int64(at), c.Now())
			time.Sleep(at + time.Millisecond)
		}
	})
}
