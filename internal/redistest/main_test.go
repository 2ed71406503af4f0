package redistest_test

import (
	"context"
	"flag"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})            // faults are what these tests are about
	_ = flag.Set("test.parallel", "16") // servers that form a group mostly wait; the flag exists
	redistest.Main(m)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
