package main

import (
	"testing"
	"testing/synctest"
)

// virtually runs f on a virtual clock. f must not wait for anything outside, or the
// clock stands still for good, and all that it starts must end.
//
// The clock is the runtime's, which is the only one that a real Limiter can be run
// by. Its only door is synctest.Test, which wants a T to make that of f from: the
// linker refuses internal/synctest to everybody else. A zero T is enough; should a
// later Go want more of it, the tests of tune tell. Package testing adds no flags
// and runs nothing unless it is told to.
func virtually(f func()) {
	synctest.Test(new(testing.T), func(*testing.T) { f() })
}
