package main

import (
	"flag"
	"io"
	"strings"
)

// flagSet is flag.FlagSet with errors that repeat nothing of what was typed but
// the names of flags: a store's URL with its password may stand in any place.
type flagSet struct {
	*flag.FlagSet
	usage  string        // the line after "usage: reservoir"
	about  string        // what help says before the flags
	parsed *flag.FlagSet // the same flags, as they were given
}

func newFlags(usage, about string) *flagSet {
	f := &flagSet{FlagSet: flag.NewFlagSet("", flag.ContinueOnError), usage: usage, about: about, parsed: flag.NewFlagSet("", flag.ContinueOnError)}
	f.parsed.SetOutput(io.Discard)
	f.parsed.Usage = func() {}
	return f
}

// parse reads args, of which exactly operands must be left, and writes the help
// to stdout if that is asked for: the error is flag.ErrHelp then.
func (f *flagSet) parse(args []string, operands int, stdout io.Writer) error {
	var bad error
	f.VisitAll(func(g *flag.Flag) { f.parsed.Var(&quiet{g.Value, g.Name, &bad}, g.Name, "") })
	switch err := f.parsed.Parse(args); {
	case err == flag.ErrHelp:
		return f.help(stdout)
	case bad != nil:
		return bad
	case err != nil:
		return f.unknown(args[:len(args)-f.parsed.NArg()])
	case f.parsed.NArg() != operands:
		return usagef("want %d arguments after the flags, not %d: reservoir %s", operands, f.parsed.NArg(), f.usage)
	}
	return nil
}

// quiet is a flag's value that keeps its first error, for package flag quotes what was
// typed.
type quiet struct {
	flag.Value
	name string
	bad  *error
}

// Set implements flag.Value.
func (q *quiet) Set(s string) error {
	if err := q.Value.Set(s); err != nil && *q.bad == nil {
		*q.bad = usagef("bad value for flag -%s: %s", q.name, oneLine(err))
	}
	return nil
}

// IsBoolFlag says that a flag may stand without a value.
func (q *quiet) IsBoolFlag() bool {
	b, ok := q.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// unknown says what is wrong with the last argument read, which is no flag of ours or
// wants a value. One like ---x is not read at all.
func (f *flagSet) unknown(read []string) error {
	if rest := f.parsed.Arg(0); len(read) == 0 || strings.HasPrefix(rest, "---") || strings.HasPrefix(strings.TrimLeft(rest, "-"), "=") {
		return usagef("no such flag")
	}
	name, _, _ := strings.Cut(strings.TrimLeft(read[len(read)-1], "-"), "=")
	foreign := func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') }
	switch {
	case f.Lookup(name) != nil:
		return usagef("flag -%s needs a value", name)
	case len(name) <= 16 && !strings.ContainsFunc(name, foreign): // it looks like the name of a flag and like nothing else
		return usagef("no such flag: -%s", name)
	}
	return usagef("no such flag")
}

func (f *flagSet) help(w io.Writer) error {
	if _, err := io.WriteString(w, "usage: reservoir "+f.usage+"\n\n"+f.about+"\n\n"); err != nil {
		return err
	}
	f.SetOutput(w)
	f.PrintDefaults()
	return flag.ErrHelp
}

// given reports whether the flag was on the command line.
func (f *flagSet) given(name string) bool {
	found := false
	f.parsed.Visit(func(g *flag.Flag) { found = found || g.Name == name })
	return found
}

// values are those of a flag that may be repeated.
type values []string

func (v *values) String() string { return "" }

func (v *values) Set(s string) error {
	*v = append(*v, s)
	return nil
}

// formatFlag adds -format and returns how to read it after parsing.
func (f *flagSet) formatFlag() func() (json bool, err error) {
	format := f.String("format", "text", "`form` of the report on standard output: text or json")
	return func() (bool, error) {
		switch *format {
		case "text", "json":
			return *format == "json", nil
		}
		return false, usagef("bad value for flag -format: want text or json")
	}
}

// storeFlags adds -store and -prefix.
func (f *flagSet) storeFlags() (stores *values, prefix *string) {
	stores = new(values)
	f.Var(stores, "store", "`where` limits are counted: memory, redis://[user:password@]host[:port][/db],\n"+
		"rediss://… (TLS; SSL_CERT_FILE may name the authority) or\n"+
		"redis-cluster://[user:password@]host:port,host:port…, or\n"+
		"redis-sentinel://[user:password@]host:port,host:port…/master; repeated, the\n"+
		"stores are shards, which keys are spread over")
	prefix = f.String("prefix", "", "`text` before every Redis key")
	return stores, prefix
}
