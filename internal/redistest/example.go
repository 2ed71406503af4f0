package redistest

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// Example has the methods of testing.TB that servers need, for an Example function, which has
// no T. The function must call stop at its end, and may call it twice.
func Example() (t testing.TB, stop func()) {
	x := new(outside)
	return x, x.end
}

type outside struct {
	testing.TB
	cleanups []func()
}

func (*outside) Helper() {}

// Fatalf ends the process.
func (x *outside) Fatalf(format string, args ...any) {
	x.end()
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

func (x *outside) Cleanup(f func()) { x.cleanups = append(x.cleanups, f) }

func (x *outside) TempDir() string {
	dir, err := os.MkdirTemp("", "example")
	check(x, err)
	x.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (x *outside) end() {
	cleanups := x.cleanups
	x.cleanups = nil
	for _, f := range slices.Backward(cleanups) {
		f()
	}
}
