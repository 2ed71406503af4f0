package redisstore

import (
	"testing"

	"go.uber.org/goleak"
)

// A pool whose dials failed looks once a second whether the server is back, and
// sees only then that it was closed. That goroutine is go-redis' own.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
