package main

import (
	"cmp"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// flagSet is a flag.FlagSet with the help of a command and the checks of its arguments.
type flagSet struct {
	*flag.FlagSet
	usage    string       // the line after "usage: reservoir"
	about    string       // the help before the flags
	want     int          // how many arguments follow the flags
	validate func() error // the values of the flags
}

func newFlags(usage, about string) *flagSet {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard) // run reports errors
	return &flagSet{FlagSet: set, usage: usage, about: about, validate: func() error { return nil }}
}

// parse reads args and validates them. Flags stand first. If args ask for help, parse
// writes it to stdout and returns flag.ErrHelp.
func (f *flagSet) parse(args []string, stdout io.Writer) error {
	err := f.Parse(args)
	n, before := f.NArg(), len(args)-f.NArg()
	ended := before > 0 && args[before-1] == "--"
	switch {
	case errors.Is(err, flag.ErrHelp):
		return f.help(stdout)
	case err != nil && (strings.Contains(err.Error(), "@") || strings.Contains(err.Error(), "://")):
		// Package flag quotes arguments, and this one may be a store's URL with a password.
		return usagef("a URL stands where none is wanted: reservoir %s", f.usage)
	case err != nil:
		return usagef("%s", oneLine(err))
	case !ended && slices.ContainsFunc(f.Args(), func(s string) bool { return strings.HasPrefix(s, "-") }):
		return usagef("flags stand before other arguments: reservoir %s", f.usage)
	case n != f.want:
		return usagef("want %s after the flags, not %d: reservoir %s", []string{"no argument", "one argument"}[f.want], n, f.usage)
	}
	return f.validate()
}

func (f *flagSet) help(w io.Writer) error {
	var b strings.Builder
	b.WriteString("usage: reservoir " + f.usage + "\n\n" + f.about + "\n\n")
	f.SetOutput(&b)
	f.PrintDefaults()
	return cmp.Or(write(w, strings.ReplaceAll(b.String(), "\t", "    ")), flag.ErrHelp)
}

// given reports whether any of the flags stands in the command line.
func (f *flagSet) given(names ...string) bool {
	found := false
	f.Visit(func(g *flag.Flag) { found = found || slices.Contains(names, g.Name) })
	return found
}

type rule struct {
	ok         bool
	flag, want string // want is the whole error if no single flag is at fault
}

// kept returns the error of the first rule that is not ok, or nil.
func kept(rules ...rule) error {
	for _, r := range rules {
		switch {
		case !r.ok && r.flag == "":
			return usagef("%s", r.want)
		case !r.ok:
			return usagef("bad value for flag -%s: want %s", r.flag, r.want)
		}
	}
	return nil
}

// judged returns the usage error for err, or nil: of a flag or, if that is empty, of what
// err names itself.
func judged(flag string, err error) error {
	if err == nil {
		return nil
	}
	if flag != "" {
		flag = "bad value for flag -" + flag + ": "
	}
	return usagef("%s%s", flag, oneLine(err))
}

func upTo(n int) string { return "1 to " + table.Commas(n) }

// common has the flags of the commands that work on a store.
type common struct {
	store  string
	prefix string
	json   bool
}

func (f *flagSet) commonFlags(c *common) {
	f.StringVar(&c.store, "store", memory, "`where` limits are counted: memory, redis://[user:password@]host[:port][/db],\n"+
		"unix://[user:password@]/path, redis-cluster://[user:password@]host[:port][?addr=host:port…]\n"+
		"or redis-sentinel://host[:port][/db]?master_name=name[&addr=host:port…], with rediss\n"+
		"for TLS (SSL_CERT_FILE may name the authority)")
	f.StringVar(&c.prefix, "prefix", "", "`text` before every Redis key")
	f.formatFlag(&c.json)
}

func (f *flagSet) formatFlag(asJSON *bool) {
	f.Func("format", "`form` of the report on standard output: text (the default) or json", func(s string) error {
		if *asJSON = s == "json"; !*asJSON && s != "text" {
			return errors.New("want text or json")
		}
		return nil
	})
}

// demandFlags adds the flags that load and tune share: the demand and the limit.
func (f *flagSet) demandFlags(s *sim.Shape, l *reservoir.Limit) {
	f.Int64Var(&l.Tokens, "limit", 10_000, "tokens per window and key")
	f.DurationVar(&l.Window, "window", time.Second, "length of a window")
	f.IntVar(&s.Keys, "keys", 1, "how many keys: key-0, key-1, …")
	f.Float64Var(&s.Zipf, "zipf", 0, "`exponent`, above 1, of a Zipf distribution that prefers the first keys; 0 = evenly")
	f.Int64Var(&s.Tokens, "n", 1, "tokens per request")
	f.Uint64Var(&s.Seed, "seed", 0, "seed of all randomness; 0 = a random one, which the JSON report contains")
}

// validDemand validates the flags of demandFlags. It replaces a seed of 0 by a random one.
func validDemand(s *sim.Shape, l reservoir.Limit, maxKeys int) error {
	s.Seed = cmp.Or(s.Seed, rand.Uint64())
	return cmp.Or(kept(rule{l.Tokens >= 1, "limit", "1 or more"}), judged("", backend.Limit(l).Validate()), kept(
		rule{s.Keys >= 1 && s.Keys <= maxKeys, "keys", upTo(maxKeys)},
		rule{s.Zipf == 0 || s.Zipf > 1 && s.Zipf <= 100 && s.Keys > 1, "zipf", "0, or above 1 with several -keys"},
		rule{s.Tokens >= 1 && s.Tokens <= l.Tokens, "n",
			"1 to the limit of " + table.Commas(l.Tokens) + " tokens, because more could never be allowed"},
		rule{s.Length > 0, "duration", "more than 0"},
	))
}
