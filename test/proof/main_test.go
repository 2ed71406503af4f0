package proof

import (
	"flag"
	"testing"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// rapid shall leave no files behind: a failure prints the seed that repeats it.
func TestMain(m *testing.M) {
	_ = flag.Set("rapid.nofailfile", "true")
	_ = flag.Set("rapid.checks", "400")
	_ = flag.Set("rapid.steps", "50")
	redistest.Main(m)
}
