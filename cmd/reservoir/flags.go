package main

import (
	"errors"
	"flag"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// flagSet is flag.FlagSet whose flags may stand anywhere, with errors that repeat
// nothing of what was typed but the names of flags: a store's URL with its password
// may stand in any place.
type flagSet struct {
	*flag.FlagSet
	usage    string        // the line after "usage: reservoir"
	about    string        // what help says before the flags
	parsed   *flag.FlagSet // the same flags, as they were given
	operands []string
}

func newFlags(usage, about string) *flagSet {
	f := &flagSet{FlagSet: flag.NewFlagSet("", flag.ContinueOnError), usage: usage, about: about, parsed: flag.NewFlagSet("", flag.ContinueOnError)}
	f.parsed.SetOutput(io.Discard)
	f.parsed.Usage = func() {}
	return f
}

// parse reads args, in which so many operands must be, and writes the help
// to stdout if that is asked for: the error is flag.ErrHelp then. All after a -- are
// operands. With less than 0 operands the caller counts them.
func (f *flagSet) parse(args []string, operands int, stdout io.Writer) error {
	var bad error
	f.VisitAll(func(g *flag.Flag) { f.parsed.Var(&quiet{g.Value, g.Name, &bad}, g.Name, "") })
	for rest := args; ; rest = rest[1:] {
		err := f.parsed.Parse(rest)
		read := rest[:len(rest)-f.parsed.NArg()]
		switch rest = f.parsed.Args(); {
		case err == flag.ErrHelp:
			return f.help(stdout)
		case bad != nil:
			return bad
		case err != nil:
			return f.unknown(read)
		}
		if len(rest) == 0 || len(read) > 0 && read[len(read)-1] == "--" {
			f.operands = append(f.operands, rest...)
			break
		}
		f.operands = append(f.operands, rest[0])
	}
	return f.count(operands)
}

// count checks how many operands there are.
func (f *flagSet) count(operands int) error {
	if n := len(f.operands); n != operands && operands >= 0 {
		return usagef("want %d arguments beside the flags, not %d: reservoir %s", operands, n, f.usage)
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
		*q.bad = usagef("bad value for flag -%s: %s", q.name, q.want(s, err))
	}
	return nil
}

// want says what a value should be. Package flag's own words are of numbers only.
func (q *quiet) want(s string, err error) string {
	var zero any
	if g, ok := q.Value.(flag.Getter); ok {
		zero = g.Get()
	}
	switch zero.(type) {
	case time.Duration:
		if _, err := strconv.ParseFloat(s, 64); err == nil {
			return "want a unit, as 5s"
		}
		return "want a duration, as 5s or 1m30s"
	case bool:
		return "want true or false"
	case int, int64, uint64:
		return "want a whole number"
	case float64:
		return "want a number"
	}
	return oneLine(err)
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
	switch {
	case f.Lookup(name) != nil:
		return usagef("flag -%s needs a value", name)
	case looksLikeName(name):
		return usagef("no such flag: -%s", name)
	}
	return usagef("no such flag")
}

// looksLikeName reports whether s looks like the name of a command or flag and like
// nothing else.
func looksLikeName(s string) bool {
	return len(s) <= 16 && !strings.ContainsFunc(s, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') })
}

func (f *flagSet) help(w io.Writer) error {
	var b strings.Builder
	b.WriteString("usage: reservoir " + f.usage + "\n\n" + prose(f.about, widthOf(w)) + "\n")
	f.SetOutput(&b)
	f.PrintDefaults()
	if err := write(w, strings.ReplaceAll(b.String(), "\t", "    ")); err != nil {
		return err
	}
	return flag.ErrHelp
}

// given reports whether the flag was on the command line.
func (f *flagSet) given(name string) bool {
	found := false
	f.parsed.Visit(func(g *flag.Flag) { found = found || g.Name == name })
	return found
}

// rule is what the value of a flag must be.
type rule struct {
	ok         bool
	flag, want string
}

// kept is the error of the first rule that is not.
func kept(rules ...rule) error {
	for _, r := range rules {
		if !r.ok {
			return usagef("bad value for flag -%s: want %s", r.flag, r.want)
		}
	}
	return nil
}

func upTo(n int64) string { return "1 to " + table.Commas(n) }

// formatFlag adds -format.
func (f *flagSet) formatFlag() (json *bool) {
	json = new(bool)
	f.Func("format", "`form` of the report on standard output: text (the default) or json", func(s string) error {
		if *json = s == "json"; !*json && s != "text" {
			return errors.New("want text or json")
		}
		return nil
	})
	return json
}

// storeFlags adds -store and -prefix.
func (f *flagSet) storeFlags() (stores *[]string, prefix *string) {
	stores = new([]string)
	f.Func("store", "`where` limits are counted: memory, redis://[user:password@]host[:port][/db],\n"+
		"redis-cluster://[user:password@]host:port,host:port… or\n"+
		"redis-sentinel://[user:password@]host:port,host:port…/master, with rediss for TLS\n"+
		"(SSL_CERT_FILE may name the authority); repeated, the stores are shards, which\n"+
		"keys are spread over", func(s string) error {
		*stores = append(slices.Clip(*stores), s)
		return nil
	})
	prefix = f.String("prefix", "", "`text` before every Redis key")
	return stores, prefix
}

// demand is the flags that load and tune share: what is asked for, and the limit.
type demand struct {
	limit  reservoir.Limit
	keys   int
	zipf   float64
	tokens int64
	seed   uint64
}

func (f *flagSet) demandFlags() *demand {
	d := new(demand)
	f.Int64Var(&d.limit.Tokens, "limit", 10_000, "tokens per window and key")
	f.DurationVar(&d.limit.Window, "window", time.Second, "length of a window")
	f.IntVar(&d.keys, "keys", 1, "how many keys: key-0, key-1, …")
	f.Float64Var(&d.zipf, "zipf", 0, "`exponent`, above 1, by which the first keys are called for more often; 0 = evenly")
	f.Int64Var(&d.tokens, "n", 1, "tokens a request asks for")
	f.Uint64Var(&d.seed, "seed", 0, "of all randomness; 0 = another each time, which the JSON report tells")
	return d
}

// validate leaves to the library what that checks by itself.
func (d *demand) validate(maxKeys int) error {
	return kept(
		rule{d.keys >= 1 && d.keys <= maxKeys, "keys", upTo(int64(maxKeys))},
		rule{d.zipf == 0 || d.zipf > 1 && d.zipf <= 100, "zipf", "0, or above 1"},
		rule{d.tokens >= 1 && (d.limit.Validate() != nil || d.tokens <= d.limit.Tokens), "n",
			"1 to the limit of " + table.Commas(d.limit.Tokens) + " tokens, for more could never be allowed"},
	)
}
