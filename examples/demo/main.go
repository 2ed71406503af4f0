// Demo shows in a terminal what reservoir is for: three operating-system processes share one
// limit over one Redis and hardly ever ask it. One process is killed, Redis goes and comes
// back, and the last lines say what that cost. "make demo" runs it in a clone; it needs only Go.
//
// It starts a redis-server 7.0 or later of its own on a free port of this machine or, where
// none is installed, an embedded server, and leaves nothing behind. With -record it also
// writes what each process did in each second, as JSON, for pictures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
)

// The demo runs its own program again, as a worker and as the keeper of a server.
const asWorker, asKeeper = "worker", "keeper"

func main() {
	logging.Disable() // go-redis logs each failed dial, and Redis is away on purpose
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == asWorker:
		err = work(args[1], args[2], os.Stdin, os.Stdout)
	case len(args) == 2 && args[0] == asKeeper:
		err = keep(args[1], os.Stdin, os.Stdout)
	default:
		err = run(ctx, args, os.Stdout)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// limit is in tokens per window. The demand is one and a half times the limit, because only
// refusals show that the limit holds.
const limit, demand, processes = 10_000, 1.5, 3

// plan says when what happens, counted from the first request.
type plan struct{ length, window, kill, down, up time.Duration }

// planFor has six windows. Both faults come in the middle of one, when processes hold tokens. A
// limit lasts for two thirds of its window, and before it is used up tokens are called back from
// processes, by many calls. The kill comes well before, so that nobody takes those for its effect.
func planFor(length time.Duration) plan {
	return plan{length: length, window: (length / 6).Truncate(time.Millisecond), kill: length * 13 / 60, down: length * 7 / 12, up: length * 9 / 12}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	length := f.Duration("for", 15*time.Second, "`how` long, 3s to 1h: a window is a sixth, a process is killed in the\nsecond, and Redis is away for a sixth")
	file := f.String("record", "", "write what happened in each second into this `file`, as JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *length < 3*time.Second || *length > time.Hour || f.NArg() > 0 {
		return errors.New("want -for of 3s to 1h, and no argument after the flags")
	}
	server, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	d := &drive{plan: planFor(*length), server: server, out: out}
	if err := d.run(ctx); err != nil {
		return err
	}
	d.print(d.summary())
	if d.Most > limit {
		return errors.New("a window admitted more than its limit")
	}
	if *file != "" {
		return d.record.write(*file)
	}
	return nil
}
