// Package example starts servers, as tests do, for code that is no test: Example functions,
// and the example programs that show what happens when a server dies.
package example

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// Redis starts a server for an Example function, which must call stop at its end.
func Redis(args ...string) (addr string, stop func()) {
	t := new(outside)
	return redistest.Start(t, args...).Addr(), t.end
}

// Main is the main function of a program that starts servers, by t. They end with run. An
// interrupt or SIGTERM ends ctx, and so does a minute; a second one ends the program.
func Main(name string, run func(ctx context.Context, t testing.TB, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	logging.Disable() // go-redis would log each attempt to reach a stopped server
	t := &outside{name: name + ": "}
	defer t.end()
	if err := run(ctx, t, os.Stdout); err != nil {
		t.Fatalf("%v", err)
	}
}

// outside has the methods of testing.TB that servers need.
type outside struct {
	testing.TB
	name     string // of the program, and a colon
	cleanups []func()
}

func (*outside) Helper() {}

// Fatalf ends the process.
func (t *outside) Fatalf(format string, args ...any) {
	t.end()
	fmt.Fprintf(os.Stderr, t.name+format+"\n", args...)
	os.Exit(1)
}

func (t *outside) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *outside) TempDir() string {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (t *outside) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}
