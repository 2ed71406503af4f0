package proof

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// rapid shall leave no files behind: a failure prints the seed that repeats it.
//
// A pool whose dials failed looks once a second whether the server is back, and
// sees only then that it was closed. That goroutine is go-redis' own.
func TestMain(m *testing.M) {
	_ = flag.Set("rapid.nofailfile", "true")
	_ = flag.Set("rapid.checks", "400")
	_ = flag.Set("rapid.steps", "50")
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
