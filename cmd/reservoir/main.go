// Command reservoir inspects, resets, drives and tunes rate limits of the library reservoir.
//
// "reservoir help" lists the commands and "reservoir <command> -h" the flags of one. The
// exit status is 0 on success, 2 for a usage error, and 1 for any other failure. An error
// is one line on standard error and contains no password and no URL. An interrupted
// command reports what it left out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const exitOK, exitFailure, exitUsage = 0, 1, 2

// command is one of the words that may follow "reservoir".
type command struct {
	name, usage, summary, about string
	flags                       func(f *flagSet) action
}

// action runs a command when its flags are parsed.
type action func(ctx context.Context, stdout io.Writer) error

var commands = []command{
	{"load", "[flags]", "drive a limiter against a store and report", loadAbout, loadFlags},
	{"inspect", "-store URL [flags] KEY", "show what a store holds for a key", inspectAbout, inspectFlags},
	{"reset", "-store URL [flags] KEY", "give a key a fresh window", resetAbout, resetFlags},
	{"tune", "[flags]", "replay a traffic under each batch policy and recommend one", tuneAbout, tuneFlags},
}

// run parses the command line, runs the command and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	_ = write(stderr, "reservoir: "+oneLine(err)+"\n") // a failure here cannot be reported
	if _, usage := errors.AsType[usageError](err); usage {
		return exitUsage
	}
	return exitFailure
}

func dispatch(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return usagef("want a command: %s", commandNames())
	}
	name, rest := strings.TrimLeft(args[0], "-"), args[1:]
	if name == "help" || name == "h" {
		if len(rest) == 0 {
			return help(stdout)
		}
		name, rest = rest[0], []string{"-h"}
	}
	for _, c := range commands {
		if c.name == name {
			f := newFlags(c.name+" "+c.usage, c.about)
			do := c.flags(f)
			if err := f.parse(rest, stdout); err != nil {
				return err
			}
			return do(ctx, stdout)
		}
	}
	return usagef("no such command: want %s", commandNames())
}

func commandNames() string {
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ") + " or help"
}

func help(w io.Writer) error {
	text := "reservoir: exact rate limits across many processes, almost without store calls\n\nusage: reservoir <command> [flags]\n\n"
	for _, c := range commands {
		text += fmt.Sprintf("  %-10s %s\n", c.name, c.summary)
	}
	return write(w, text+"\n\"reservoir <command> -h\" lists the flags of a command.\n")
}

// usageError is a fault in the command line, not in its execution.
type usageError string

func (e usageError) Error() string { return string(e) }

func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }
