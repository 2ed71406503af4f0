package redistest

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// StartExample is [Start] for an Example function, which has no testing.T, so failures
// panic. The example must call stop at its end.
func StartExample(args ...string) (addr string, stop func()) {
	t := new(exampleT)
	return Start(t, args...).Addr(), t.end
}

// exampleT has the methods of testing.TB that a single server needs.
type exampleT struct {
	testing.TB
	cleanups []func()
}

func (*exampleT) Helper() {}

func (*exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *exampleT) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *exampleT) TempDir() string {
	dir, err := os.MkdirTemp("", "example")
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (t *exampleT) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}
