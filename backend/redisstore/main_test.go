package redisstore

import (
	"flag"
	"testing"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // servers that form a group mostly wait; the flag exists
	redistest.Main(m)
}
