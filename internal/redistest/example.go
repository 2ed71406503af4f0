package redistest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// StartExample is [Start] for an Example function, which has no testing.T, so failures
// panic. The example must call stop at its end.
func StartExample(args ...string) (addr string, stop func()) {
	t := new(exampleT)
	return Start(t, args...).Addr(), t.end
}

// Program is the main function of an example program that starts servers, by t. They end
// with run. An interrupt or SIGTERM ends ctx, and so does a minute; a second one ends the
// program.
func Program(name string, run func(ctx context.Context, t testing.TB, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	logging.Disable() // go-redis would log each attempt to reach a stopped server
	t := new(exampleT)
	err := t.do(func() error { return run(ctx, t, os.Stdout) })
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// exampleT has the methods of testing.TB that servers need.
type exampleT struct {
	testing.TB
	cleanups []func()
}

// failure is the panic of Fatalf.
type failure struct{ error }

func (*exampleT) Helper() {}

func (*exampleT) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

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

// do returns the error of f, or the failure that ended it.
func (t *exampleT) do(f func() error) (err error) {
	defer t.end()
	defer func() {
		if p := recover(); p != nil {
			failed, ok := p.(failure)
			if !ok {
				panic(p)
			}
			err = errors.Join(err, failed)
		}
	}()
	return f()
}
