// Package docs_test checks what the documents of the repository say, and what
// the library requires of those who import it.
package docs_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestMain runs the tests at the root of the repository: documents name files,
// directories and commands from there.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	redistest.Main(m)
}
