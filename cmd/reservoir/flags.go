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
	usage string // the line after "usage: reservoir"
	about string // what help says before the flags
}

func newFlags(usage, about string) *flagSet {
	f := &flagSet{FlagSet: flag.NewFlagSet("", flag.ContinueOnError), usage: usage, about: about}
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	return f
}

// parse reads args, of which exactly operands must be left, and writes the help
// to stdout if that is asked for: the error is flag.ErrHelp then.
func (f *flagSet) parse(args []string, operands int, stdout io.Writer) error {
	switch err := f.Parse(args); {
	case err == flag.ErrHelp:
		return f.help(stdout)
	case err != nil:
		return flagError(err)
	case f.NArg() != operands:
		return usagef("want %d arguments after the flags, not %d: reservoir %s", operands, f.NArg(), f.usage)
	}
	return nil
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
	f.Visit(func(g *flag.Flag) { found = found || g.Name == name })
	return found
}

// flagError is err without the values that package flag quotes. They may hold any
// words, so what kind of error it is shows at its begin, and which flag's at its end.
func flagError(err error) error {
	text := err.Error()
	if i := strings.LastIndex(text, " for -"); i >= 0 && strings.HasPrefix(text, "invalid boolean value ") {
		return usagef("bad value for flag -%s", text[i+len(" for -"):])
	}
	if i := strings.LastIndex(text, " for flag -"); i >= 0 && strings.HasPrefix(text, "invalid value ") {
		return usagef("bad value%s", text[i:])
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: "); ok {
		return usagef("flag %s needs a value", name) // the name is one of ours
	}
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: "); ok && plain(name) {
		return usagef("no such flag: %s", name)
	}
	return usagef("no such flag")
}

// plain reports whether name looks like the name of a flag and like nothing else.
func plain(name string) bool {
	return len(name) <= 16 && !strings.ContainsFunc(name, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') })
}

// values are those of a flag that may be repeated. Set never fails, because
// package flag would quote the value in its error.
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
