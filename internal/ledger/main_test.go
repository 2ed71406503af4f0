package ledger

import (
	"flag"
	"testing"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

var (
	Runs = flag.Int("runs", 60, "of each campaign")
	seed = flag.Uint64("seed", 0, "of the requests; 0 = any")
)

func TestMain(m *testing.M) {
	flag.Parse()
	redistest.Main(m)
}
