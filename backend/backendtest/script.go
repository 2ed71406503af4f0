package backendtest

import (
	"context"
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
// windows. A window is written as its end and, after a Reset, as "end/generation", which is the time of the Reset. Values
// that a call does not name are zero. "limit" changes the limit. An empty line starts a new
// key, and so does every line of a section that says each. In a section that says heard, the
// processes a, b and c listen, and "hears a" names the messages that have come since the last. A section that says lossy
// is for stores that can lose their data: "lose count", "lose end", "lose ledger" or "lose all". A limit that says calendar
// has begin= and end= in its calls.
//
// A limit that says rolling is one. A bucket of it is written as its end, and a number of tokens in it as bucket:n. Its
// generation is that of=none/gen, and its client has read the reply to its last statement unless known= says otherwise.
//
// The calls are take n, which is all or nothing without an account; use n of=, which was used above such a charge in that
// window, or use 0 changes= of a rolling limit; use 0 hold=, which holds, as hold= of any statement does; sync client, whose next statement it is unless seq= says otherwise, with its
// window as of=, which runs until its end, unless the call says ended; crowd n, the statements of n clients; check; and reset.
//
// A reply says whether a request was allowed or denied, what was granted by this reply, what the client's account
// is charged, and then what the
// store holds of the counter: the tokens charged, which may be more than the limit, what remains, and the
// window, if one is open, and for how long the counter is held, if it is. Only a line that names them compares clients=, idle=, called=, lasted=, frees= and grants=. A store says what is
// charged if it is an Inspector.
//
// A change of a figure is a change of what stores promise. Write it by hand, with its reason after the
// line, and never make the figures anew by a program.
//
//go:embed scripts
var scripts embed.FS

func runScripts(t *testing.T, newStore func(t *testing.T) backend.Store) {
	t.Helper()
	for _, section := range sections(t) {
		name, _, _ := strings.Cut(section, " ")
		t.Run(name, func(t *testing.T) { runSection(t, newStore(t), section) })
	}
}

// sections are those of all scripts.
func sections(t testing.TB) (list []string) {
	for _, name := range []string{"window", "calendar", "account", "grant", "recall", "loss", "reset", "rolling", "hold"} {
		text := must(scripts.ReadFile("scripts/" + name + ".txt"))(t)
		list = append(list, strings.Split("\n"+string(text), "\n== ")[1:]...)
	}
	return list
}

func runSection(t testing.TB, s backend.Store, section string) {
	head, body, _ := strings.Cut(section, "\n")
	words := strings.Fields(head)
	whole := parseLimit(t, strings.Join(words[1:], " "))
	b := newBench(t, s, whole)
	if slices.Contains(words, "heard") {
		b.listen("a", "b", "c")
	}
	if _, loses := s.(Loser); slices.Contains(words, "lossy") && !loses {
		return
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
		want = b.inspected(strings.TrimSpace(want))
		if got := named(b.call(call), want); known && got != want {
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
		n := parseNumber(b.t, words[2])
		q := backend.Statement{Need: n}
		b.fill(&q, words[3:])
		reply := b.sync(at, q)
		if reply.Astray {
			return "astray"
		}
		return verdict(reply.Grant == n) + b.state(at, reply.State) + b.rolled(reply)
	case "use":
		q := backend.Statement{Change: parseNumber(b.t, words[2])}
		b.fill(&q, words[3:])
		reply := b.sync(at, q)
		if reply.Astray {
			return "astray"
		}
		return b.state(at, reply.State)
	case "check":
		return b.state(at, must(b.store.Check(ctx, b.key, b.limit))(b.t))
	case "reset":
		void := must(b.store.Reset(ctx, b.key, b.limit))(b.t)
		return "void=" + b.window(void)
	case "crowd": // clients that share a window, whose first charge one of them makes
		for i := range parseNumber(b.t, words[2]) {
			b.sync(at, backend.Statement{Client: fmt.Sprint("crowd.", i), Want: max(1-i, 0), Hints: backend.Hints{Exact: true}})
		}
		return ""
	case "lose":
		b.lose(ctx, words[2])
		return ""
	case "sync":
		q := backend.Statement{Client: words[2]}
		if b.limit.Rolls {
			q.Known = b.seqs[b.account(q.Client)]
		}
		b.fill(&q, words[3:])
		q.Runs = q.Window.End > b.ms(at) && !slices.Contains(words, "ended")
		return b.reply(at, b.sync(at, q))
	}
	b.t.Fatalf("no such call: %s", text)
	return ""
}

// lose makes the store lose some of the counter.
func (b *bench) lose(ctx context.Context, what string) {
	s, counter := b.store.(Loser), b.limit.Counter()
	if b.limit.Rolls {
		must(0, s.LoseRing(ctx, b.key, counter))(b.t)
		return
	}
	for part, lose := range map[string]func(ctx context.Context, key, counter string) error{"count": s.LoseCount, "end": s.LoseEnd, "ledger": s.LoseLedger} {
		if what == part || what == "all" {
			must(0, lose(ctx, b.key, counter))(b.t)
		}
	}
}

func verdict(allowed bool) string {
	if allowed {
		return "allowed "
	}
	return "denied "
}

// some returns a figure in words, or nothing if it is 0.
func some(name string, n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(name, "=", n, " ")
}

// reply returns that of a statement of an account in words.
func (b *bench) reply(at time.Duration, r backend.Reply) string {
	switch {
	case r.Void:
		return "void"
	case r.Astray:
		return "astray"
	}
	if _, ok := b.store.(backend.Inspector); ok {
		equal(b.t, "what the reply says is charged", fmt.Sprint("charged=", r.Used), b.charged(at))
	}
	text := some("grant", r.Grant) + some("mine", r.Mine) + b.state(at, r.State)
	return text + fmt.Sprintf(" clients=%d idle=%d called=%d lasted=%s", r.Clients, r.Idle, r.Called, seconds(r.Lasted)) + b.rolled(r)
}

// rolled returns in words what only replies of rolling limits say.
func (b *bench) rolled(r backend.Reply) string {
	grants, sum := []string(nil), int64(0)
	for _, g := range r.Grants {
		end := time.UnixMicro(backend.BucketEnd(g.Bucket, b.limit.Window)).Sub(b.base)
		grants, sum = append(grants, fmt.Sprintf("%s:%d", seconds(end), g.Tokens)), sum+g.Tokens
	}
	if b.limit.Rolls {
		equal(b.t, "the sum of the grants", sum, r.Grant)
	}
	return fmt.Sprintf(" frees=%s grants=%s", seconds(r.Frees), strings.Join(grants, ","))
}

// named returns the words of a reply without the figures that want does not name.
func named(got, want string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(got), func(word string) bool {
		name, _, _ := strings.Cut(word, "=")
		return slices.Contains([]string{"clients", "idle", "called", "lasted", "frees", "grants"}, name) && !strings.Contains(want, name+"=")
	}), " ")
}

// fill sets the fields of a request that a call's arguments name, and converts times to
// windows.
func (b *bench) fill(request any, words []string) {
	b.t.Helper()
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		if name == "of" {
			name = "window"
		}
		field := reflect.ValueOf(request).Elem().FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, name) })
		switch {
		case word == "ended":
		case !field.IsValid():
			b.t.Fatalf("no such argument: %s", word)
		case name == "changes":
			field.Set(reflect.ValueOf(b.changes(value)))
		case name == "after":
			field.SetInt(b.bucket(value))
		case field.Kind() == reflect.Bool:
			field.SetBool(true)
		case field.Type() == reflect.TypeFor[backend.Window]():
			field.Set(reflect.ValueOf(b.parseWindow(value)))
		case name == "begin" || name == "end":
			field.SetInt(b.ms(parseDuration(b.t, value)))
		case field.Type() == reflect.TypeFor[time.Duration]():
			field.SetInt(int64(parseDuration(b.t, value)))
		default:
			field.SetInt(parseNumber(b.t, value))
		}
	}
}

// changes parses changes, as in 2s:-30,3s:4.
func (b *bench) changes(text string) (list []backend.Change) {
	for word := range strings.SplitSeq(text, ",") {
		bucket, tokens, _ := strings.Cut(word, ":")
		list = append(list, backend.Change{Bucket: b.bucket(bucket), Tokens: parseNumber(b.t, tokens)})
	}
	return list
}

// bucket parses one by its end; none is 0, the one in which the store hears of it.
func (b *bench) bucket(text string) int64 {
	if text == "none" {
		return 0
	}
	return backend.Bucket(b.base.Add(parseDuration(b.t, text)).UnixMicro()-1, b.limit.Window)
}

// state returns a reading in words.
func (b *bench) state(at time.Duration, s backend.State) string {
	words := strings.Fields(fmt.Sprint(b.charged(at), " remaining=", s.Remaining))
	if s.Window.End != 0 {
		words = append(words, "window="+b.window(s.Window))
	}
	if s.Held > 0 {
		words = append(words, "held="+seconds(s.Held))
	}
	return strings.Join(words, " ")
}

// window returns a window in words.
func (b *bench) window(w backend.Window) string {
	text := "none"
	if w.End != 0 {
		text = seconds(w.Time().Sub(b.base))
	}
	if w.Gen != 0 {
		text += "/" + seconds(time.UnixMilli(w.Gen).Sub(b.base))
	}
	return text
}

func (b *bench) parseWindow(text string) (w backend.Window) {
	end, gen, reset := strings.Cut(text, "/")
	if end != "none" {
		w.End = b.ms(parseDuration(b.t, end))
	}
	if reset {
		w.Gen = b.ms(parseDuration(b.t, gen))
	}
	return w
}

// charged returns in words how many tokens the store has charged, or nothing if it cannot be asked.
func (b *bench) charged(at time.Duration) string {
	inspector, ok := b.store.(backend.Inspector)
	if !ok {
		return ""
	}
	list := must(inspector.Inspect(b.at(at), b.key))(b.t)
	if i := slices.IndexFunc(list, func(c backend.Contents) bool { return c.Counter == b.limit.Counter() }); i >= 0 {
		return fmt.Sprint("charged=", list[i].Used)
	}
	return "charged=0"
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
	l := backend.Limit{Tokens: parseNumber(t, tokens), Window: parseDuration(t, window), Rolls: slices.Contains(words, "rolling")}
	if slices.Contains(words, "calendar") {
		l.Calendar.Period = backend.Day
	}
	return l
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
