// Command reservoir shows, drives and inspects rate limits of the reservoir
// library.
//
// "reservoir help" names the commands and "reservoir <command> -h" its flags, which may stand
// before and after operands. On a terminal nothing is wider than that. The exit
// status is 0 if the command ran as asked, 2 if it was asked something that makes no
// sense, and 1 for any other failure; an error is one line on standard error,
// which holds no password and no URL. What is interrupted tells what it has left out.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// command is one of the words that may follow "reservoir".
type command struct {
	name, summary string
	run           func(ctx context.Context, args []string, stdout, stderr io.Writer) error
}

var commands = []command{
	{"demo", "show the main idea on the embedded store", runDemo},
	{"load", "drive a limiter against a store and report", runLoad},
	{"inspect", "show what a store holds for a key, or its fullest keys", runInspect},
	{"watch", "show what a store holds for a key, live", runWatch},
	{"reset", "give a key a fresh window", runReset},
	{"tune", "replay a traffic under each batch policy and recommend one", runTune},
	{"version", "print the version of this build", runVersion},
}

// run is main without the process: it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	_ = write(stderr, "reservoir: "+oneLine(err)+"\n") // there is nobody else to tell
	if _, usage := errors.AsType[*usageError](err); usage {
		return exitUsage
	}
	return exitFailure
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usagef("want a command: %s", commandNames())
	}
	name, rest := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		if len(rest) == 0 {
			return help(stdout)
		}
		name, rest = rest[0], []string{"-h"}
	case "-version", "--version":
		name = "version"
	}
	for _, c := range commands {
		if c.name == name {
			return c.run(ctx, rest, stdout, stderr)
		}
	}
	if !looksLikeName(name) {
		return usagef("no such command: want %s", commandNames())
	}
	return usagef("no such command: %s: want %s", name, commandNames())
}

func commandNames() string {
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ") + " or help"
}

func help(w io.Writer) error {
	text := "reservoir: rate limits that are exact over many processes, nearly without store calls\n\nusage: reservoir <command> [flags]\n\n"
	for _, c := range commands {
		text += fmt.Sprintf("  %-10s %s\n", c.name, c.summary)
	}
	return write(w, text+"\n\"reservoir <command> -h\" tells the flags of a command.\n")
}

// usageError is a fault of what was asked for, as opposed to what then happened.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// runVersion prints what the build recorded of itself.
func runVersion(_ context.Context, args []string, stdout, _ io.Writer) error {
	f := newFlags("version", "Prints the version of this build, with its revision, and its Go.")
	if err := f.parse(args, 0, stdout); err != nil {
		return err
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo) // of another build tool
	}
	// The version of a build from a work tree names its revision, and says if there are changes.
	return write(stdout, fmt.Sprintln("reservoir", cmp.Or(info.Main.Version, "(devel)"), info.GoVersion))
}
