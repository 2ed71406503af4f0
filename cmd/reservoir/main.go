// Command reservoir shows, drives and inspects rate limits of the reservoir
// library.
//
//	reservoir demo      the main idea in some seconds, with nothing to install
//	reservoir load      drives a limiter against a store and reports what happened
//	reservoir inspect   what a store holds for a key
//	reservoir tune      which batch policy suits a traffic, and why
//	reservoir version   which build this is
//
// "reservoir help" and "reservoir <command> -h" tell the flags. The exit status
// is 0 if the command ran as asked, 2 if it was asked something that makes no
// sense, and 1 for any other failure; an error is one line on standard error,
// which holds no password and no URL.
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
	"unicode"
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
	{"inspect", "show what a store holds for a key", runInspect},
	{"tune", "replay a traffic under each batch policy and recommend one", runTune},
	{"version", "print the version of this build", runVersion},
}

// run is main without the process: it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	var usage *usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "reservoir: %s\n", oneLine(err))
		return exitUsage
	default:
		fmt.Fprintf(stderr, "reservoir: %s\n", oneLine(err))
		return exitFailure
	}
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usagef(`want a command: "reservoir help" lists them`)
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		return help(stdout)
	}
	for _, c := range commands {
		if c.name == args[0] {
			return c.run(ctx, args[1:], stdout, stderr)
		}
	}
	return usagef(`no such command: "reservoir help" lists them`)
}

func help(w io.Writer) error {
	var b strings.Builder
	b.WriteString("reservoir: rate limits that are exact over many processes, nearly without store calls\n\nusage: reservoir <command> [flags]\n\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "  %-10s %s\n", c.name, c.summary)
	}
	b.WriteString("\n\"reservoir <command> -h\" tells the flags of a command.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// usageError is a fault of what was asked for, as opposed to what then happened.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}

// oneLine is the text of err on one line and without the prefix that the
// library's errors have already. What a terminal may take for a command, which a
// server's reply may hold, is a "?".
func oneLine(err error) string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	return strings.TrimPrefix(strings.Map(shown, text), "reservoir: ")
}

func shown(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}
