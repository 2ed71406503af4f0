// Package docs_test checks the documents of the repository and the requirements of the
// library.
package docs_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestMain runs the tests at the root of the repository, because documents name files,
// directories and commands from there.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	redistest.Main(m)
}
