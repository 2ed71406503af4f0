package tune

import (
	"testing"
	"testing/synctest"
)

// virtually runs f on a clock that stands still while anything runs and leaps to
// the next timer when everything waits. f must not wait for anything outside, or
// the clock stands still for good, and all that it starts must end.
//
// The clock is the runtime's. Its only door is synctest.Test, which is made for
// tests and wants a T, to make that of f from. A zero one is enough: should a
// later Go want more of it, TestReplay tells. Package testing adds no flags and
// runs nothing unless it is told to.
func virtually(f func()) {
	synctest.Test(new(testing.T), func(*testing.T) { f() })
}
