package ledger

import (
	"flag"
	"testing"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

var Runs = flag.Int("runs", 60, "of each campaign")

func TestMain(m *testing.M) {
	flag.Parse()
	redistest.Main(m)
}
