package redistest_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // faults are what these tests are about
	redistest.Main(m)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
