package redistest_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // faults are what these tests are about
	goleak.VerifyTestMain(m)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
