package backendtest

import (
	"embed"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// The scripts are calls and what any protocol must answer to them:
//
//	== Take 10/60s
//	0s take 3 -> allowed charged=3 remaining=7 window=60s; 1s check -> charged=3 remaining=7 window=60s # why
//
// A section is a test and begins with its name and limit. A line is one call or several,
// each with the store's time. All times count from the same base, including the ends of
// windows, of= (the window of a statement) and end= (by a calendar). Values that a call
// does not name are zero. "limit" changes the limit. An empty line starts a new
// key, and so does every line of a section that says each. In a section that says heard, the
// processes a, b and c listen, and "hears a" names the messages that have come since the last. A limit
// that says rolling is one: account= is when an account began.
//
// A reply says whether a request was allowed or denied, what was granted by this reply, and then what the
// store holds of the key: the tokens charged, which may be more than the limit, what remains, and the
// end of the window, if one is open. A store says what is charged if it is an Inspector.
//
// A change of a figure is a change of what stores promise. Write it by hand, with its reason after the
// line, and never make the figures anew by a program.
//
//go:embed scripts
var scripts embed.FS

func runScripts(t *testing.T, newStore func(t *testing.T) backend.Store) {
	t.Helper()
	for _, name := range []string{"window", "grant", "account", "loss", "reset", "recall", "rolling"} {
		text := must(scripts.ReadFile("scripts/" + name + ".txt"))(t)
		for _, section := range strings.Split("\n"+string(text), "\n== ")[1:] {
			name, _, _ := strings.Cut(section, " ")
			t.Run(name, func(t *testing.T) { runSection(t, newStore(t), section) })
		}
	}
}

func runSection(t *testing.T, s backend.Store, section string) {
	head, body, _ := strings.Cut(section, "\n")
	words := strings.Fields(head)
	whole := parseLimit(t, strings.Join(words[1:], " "))
	b := newBench(t, s, whole)
	if slices.Contains(words, "heard") {
		b.listen("a", "b", "c")
	}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		limit, changes := strings.CutPrefix(line, "limit ")
		switch {
		case line == "":
			b.key, b.limit = newKey(), whole
		case changes:
			b.limit = parseLimit(t, limit)
		case line[0] != '#':
			b.play(line)
			if slices.Contains(words, "each") {
				b.key = newKey()
			}
		}
	}
}

// play makes the calls of a line, and compares the replies that the line gives. Of a store that
// is no Inspector it does not compare what is charged, and of one that is no Listener nobody hears.
func (b *bench) play(line string) {
	b.t.Helper()
	steps, _, _ := strings.Cut(line, " # ")
	for step := range strings.SplitSeq(steps, "; ") {
		call, want, known := strings.Cut(step, " -> ")
		if _, process, hears := strings.Cut(call, " hears "); hears {
			b.hears(process, strings.TrimSpace(want))
			continue
		}
		if got := b.call(call); known && got != b.inspected(strings.TrimSpace(want)) {
			b.t.Fatalf("%s\n: the reply to %q is %q", line, call, got)
		}
	}
}

// call makes a call and returns its reply in words.
func (b *bench) call(text string) string {
	b.t.Helper()
	words := strings.Fields(text)
	at, op := parseDuration(b.t, words[0]), words[1]
	switch ctx := b.at(at); op {
	case "take":
		r := backend.TakeRequest{Key: b.key, Limit: b.limit, Tokens: parseNumber(b.t, words[2])}
		b.fill(&r, words[3:])
		reply := must(b.store.Take(ctx, r))(b.t)
		if reply.Allowed {
			return "allowed " + b.state(at, reply.State)
		}
		return "denied " + b.state(at, reply.State)
	case "check":
		return b.state(at, must(b.store.Check(ctx, b.key, b.limit))(b.t))
	case "settle":
		r := backend.SettleRequest{Key: b.key, Tokens: parseNumber(b.t, words[2]), Limit: b.limit.Tokens}
		if b.limit.Rolls {
			r.Rolling = b.limit.Window
		}
		b.fill(&r, words[3:])
		must(b.store.Settle(ctx, r))(b.t)
		return b.charged(at)
	case "reset":
		r := backend.ResetRequest{Key: b.key, Limit: b.limit}
		b.fill(&r, words[2:])
		return b.state(at, must(b.store.Reset(ctx, r))(b.t))
	case "sync":
		r := backend.SyncRequest{Client: words[2]}
		b.fill(&r, words[3:])
		reply := b.sync(at, r)
		if reply.Grant == 0 {
			return b.state(at, reply.State)
		}
		return fmt.Sprint("grant=", reply.Grant, " ", b.state(at, reply.State))
	}
	b.t.Fatalf("no such call: %s", text)
	return ""
}

// fill sets the fields of a request that a call's arguments name, and converts times to
// windows.
func (b *bench) fill(request any, words []string) {
	b.t.Helper()
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "of":
			name = "window"
		case "open":
			name = "openLength"
		case "account": // by when it began
			value = fmt.Sprint(b.base.Add(parseDuration(b.t, value)).UnixMicro())
		}
		field := reflect.ValueOf(request).Elem().FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, name) })
		switch {
		case !field.IsValid():
			b.t.Fatalf("no such argument: %s", word)
		case name == "spent":
			field.Set(reflect.ValueOf(b.spent(value)))
		case field.Kind() == reflect.Bool:
			field.SetBool(true)
		case field.Type() == reflect.TypeFor[backend.Window]():
			field.SetInt(int64(b.end(parseDuration(b.t, value))))
		case field.Type() == reflect.TypeFor[time.Duration]():
			field.SetInt(int64(parseDuration(b.t, value)))
		default:
			field.SetInt(parseNumber(b.t, value))
		}
	}
}

// spent parses totals by times in whose slices they were spent, or without a time, as in 1s:30,40.
func (b *bench) spent(text string) (list []backend.Spent) {
	for word := range strings.SplitSeq(text, ",") {
		slice := int64(backend.MaxTokens)
		if at, total, timed := strings.Cut(word, ":"); timed {
			slice, word = backend.Slice(b.base.Add(parseDuration(b.t, at)).UnixMicro(), b.limit.Window), total
		}
		list = append(list, backend.Spent{Slice: slice, Tokens: parseNumber(b.t, word)})
	}
	return list
}

// state returns a reading in words.
func (b *bench) state(at time.Duration, s backend.State) string {
	words := strings.Fields(fmt.Sprint(b.charged(at), " remaining=", s.Remaining))
	if s.Window != 0 {
		words = append(words, "window="+seconds(s.Window.Time().Sub(b.base)))
	}
	return strings.Join(words, " ")
}

// charged returns in words how many tokens the store has charged, or nothing if it cannot be asked.
func (b *bench) charged(at time.Duration) string {
	inspector, ok := b.store.(backend.Inspector)
	if !ok {
		return ""
	}
	return fmt.Sprint("charged=", must(inspector.Inspect(b.at(at), b.key))(b.t).Used)
}

// inspected returns what is wanted of this store.
func (b *bench) inspected(want string) string {
	if _, ok := b.store.(backend.Inspector); ok {
		return want
	}
	return strings.Join(slices.DeleteFunc(strings.Fields(want), func(word string) bool { return strings.HasPrefix(word, "charged=") }), " ")
}

func parseLimit(t testing.TB, text string) backend.Limit {
	t.Helper()
	words := strings.Fields(text)
	tokens, window, _ := strings.Cut(words[0], "/")
	return backend.Limit{Tokens: parseNumber(t, tokens), Window: parseDuration(t, window), Rolls: slices.Contains(words, "rolling")}
}

func parseNumber(t testing.TB, text string) int64 {
	t.Helper()
	return must(strconv.ParseInt(text, 10, 64))(t)
}

func parseDuration(t testing.TB, text string) time.Duration {
	t.Helper()
	return must(time.ParseDuration(text))(t)
}

// seconds returns d as the scripts write it.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}
