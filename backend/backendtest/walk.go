package backendtest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/counter"
)

// Number of random walks in a test, and of steps in a walk.
const (
	walks = 8
	steps = 300
)

// seedVariable is the environment variable that repeats a failed walk.
const seedVariable = "RESERVOIR_SEED"

// walkAll makes random walks, and checks that they reached every place. If lossy, the
// store may lose its data.
func walkAll(t testing.TB, s backend.Store, lossy bool) {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		seed = must(strconv.ParseUint(text, 10, 64))(t)
	}
	t.Logf("to repeat: %s=%d", seedVariable, seed)
	seen := make(map[string]int)
	for i := range walks {
		newWalk(t, s, rand.New(rand.NewPCG(seed, uint64(i))), lossy, seen).run()
	}
	places := []string{
		"heard", "unheard", "repeated", "late", "recovered", "give-back", "take", "refused take", "unheard take",
		"refund", "overrun", "roll", "exhausted", "spent", "debt", "leaving", "over", "reset", "void",
	}
	if !lossy {
		places = append(places, "late settlement")
	} else {
		places = append(places, "loss", "reasserted", "adopted", "carried", "learning")
	}
	for _, place := range places {
		if seen[place] == 0 {
			t.Errorf("the walks never saw: %s (%v)", place, seen)
		}
	}
}

// walk is a random mix of all that clients, networks and time do to one key. Its counter
// gets the same calls as the store.
type walk struct {
	*bench
	rnd     *rand.Rand
	lossy   bool
	now     time.Duration
	counter counter.Counter
	window  backend.Window // of the last reply that had one
	void    backend.Window // of the windows that a reset has closed, the one with the latest end
	clients []*holder
	sent    []letter // statements that may arrive again
	taken   []taken  // charges of direct calls, to be settled
	direct  int64    // charged to the window by Take and Settle
	given   int64    // given back to it by Settle
	losses  int
	seen    map[string]int
}

// taken is the charge of a direct call.
type taken struct {
	window backend.Window
	tokens int64
}

// letter is a statement in transit.
type letter struct {
	backend.SyncRequest
	from          *holder
	moves, losses int // the client's and the walk's, when it was sent
}

// holder is a client as it sees itself.
type holder struct {
	name   string
	window backend.Window
	g, b   int64
	debt   int64
	spent  int64 // of g-b
	total  int64 // in the last reply about window
	used   int64
	moves  int // from one window to another
}

func (h *holder) stock() int64 { return h.g - h.b - h.spent }

func newWalk(t testing.TB, s backend.Store, rnd *rand.Rand, lossy bool, seen map[string]int) *walk {
	tokens := []int64{7, 100, 2500, 10_000_000}[rnd.IntN(4)]
	w := &walk{
		bench: newBench(t, s, backend.Limit{Tokens: tokens, Window: far}),
		rnd:   rnd, lossy: lossy, seen: seen,
	}
	for i := range 2 + rnd.IntN(4) {
		w.clients = append(w.clients, &holder{name: string(rune('a' + i))})
	}
	return w
}

func (w *walk) run() {
	w.t.Helper()
	for range steps {
		w.step()
		w.check()
	}
	w.settle()
}

func (w *walk) step() {
	w.t.Helper()
	c := pick(w, w.clients...)
	switch p := w.rnd.IntN(100); {
	case p < 30:
		w.heard(c)
	case p < 40:
		w.seen["unheard"]++
		w.tell(w.statement(c))
	case p < 48:
		w.twice(c)
	case p < 55:
		w.late()
	case p < 65:
		w.takeSome()
	case p < 72:
		w.settleSome()
	case p < 82:
		w.spend(c)
	case p < 85:
		w.reset()
	case p < 97 || !w.lossy:
		w.now += w.pause()
		// A window that was reset is not void between its new end and its old one.
		for w.runs(w.void) && !w.open() {
			w.now += time.Millisecond
		}
	default:
		w.lose()
	}
}

// statement returns c's next statement, with a random want.
func (w *walk) statement(c *holder) backend.SyncRequest {
	if w.rnd.IntN(4) == 0 && c.stock() > 0 {
		c.b += w.some(c.stock())
		w.seen["give-back"]++
	}
	if w.rnd.IntN(8) == 0 && c.window != 0 {
		c.debt += w.some(w.limit.Tokens / 10)
	}
	want := w.some(w.limit.Tokens * 5 / 4)
	need := w.some(want)
	r := backend.SyncRequest{
		Key: w.key, Client: c.name, Limit: w.limit, Window: c.window, Granted: c.g, Returned: c.b, Debt: c.debt,
		Want: want, Need: need, Least: w.some(need), Leaving: w.rnd.IntN(8) == 0, Strand: pick(w, -1, 0, w.limit.Tokens/100, w.limit.Tokens/4),
		Peers: pick[int64](w, 0, 1, 3, 50), Pace: pick(w, 0, w.some(w.limit.Tokens)),
		Total: c.total, Used: c.used,
	}
	w.sent = append(w.sent, letter{r, c, c.moves, w.losses})
	return r
}

// us returns the store's time in the form that a counter takes.
func (w *walk) us() int64 { return w.base.Add(w.now).UnixMicro() }

// open reports whether the last window is not over.
func (w *walk) open() bool { return w.runs(w.window) }

// runs reports whether a window is not over.
func (w *walk) runs(window backend.Window) bool {
	return window != 0 && !window.Time().Before(w.base.Add(w.now))
}

func (w *walk) check() backend.State {
	w.t.Helper()
	got := must(w.store.Check(w.at(w.now), w.key, w.limit))(w.t)
	equal(w.t, "check", got, w.counter.Check(w.limit, w.us()))
	return got
}

// tell makes a statement.
func (w *walk) tell(r backend.SyncRequest) backend.SyncReply {
	w.t.Helper()
	r.Key = w.key // the store may have lost its data since
	got := must(w.store.Sync(w.at(w.now), r))(w.t)
	equal(w.t, "sync", got, w.counter.Sync(r, w.us()))
	for what, was := range map[string]bool{
		"void":      r.Granted > r.Returned && r.Window <= w.void && r.Window != w.window && w.open() && w.runs(r.Window),
		"recovered": got.Recovered > 0, "exhausted": got.Remaining == 0, "reasserted": got.Reasserted > 0,
		"carried": got.Carried, "learning": got.Learning, "debt": got.Debt > 0, "over": got.Over > 0, "leaving": r.Leaving,
		"adopted": w.lossy && r.Window != 0 && got.Window == r.Window && w.window == 0,
	} {
		if was {
			w.seen[what]++
		}
	}
	if got.Window != 0 {
		w.enter(got.Window)
	}
	return got
}

// enter records a reply's window, which may be a new one.
func (w *walk) enter(window backend.Window) {
	if window == w.window {
		return
	}
	if w.window != 0 {
		w.seen["roll"]++
	}
	w.window, w.direct, w.given = window, 0, 0
}

func (w *walk) heard(c *holder) {
	w.t.Helper()
	w.seen["heard"]++
	w.hear(c, w.tell(w.statement(c)))
}

// twice makes a statement two times; c gets one of the replies.
func (w *walk) twice(c *holder) {
	w.t.Helper()
	w.seen["repeated"]++
	r := w.statement(c)
	first := w.tell(r)
	again := w.now
	if w.rnd.IntN(2) == 0 {
		w.now += pick(w, 0, time.Millisecond, time.Second)
	}
	second := w.tell(r)
	if w.now == again {
		equal(w.t, "what is granted to a statement told twice", second.Grant, first.Grant)
	}
	w.hear(c, pick(w, first, second))
}

// late delivers an old statement, whose reply is lost. It may be older than a loss of
// data, or older than its client's move to another window, but not older than both, nor
// than a move back, because the client begins a new account there. A store that is given a
// deadline does not execute so old a statement.
func (w *walk) late() {
	w.t.Helper()
	if len(w.sent) == 0 {
		return
	}
	l := pick(w, w.sent[max(0, len(w.sent)-8):]...)
	if l.moves == l.from.moves || l.losses == w.losses && l.Window != l.from.window {
		w.seen["late"]++
		w.tell(l.SyncRequest)
	}
}

// hear makes c take in the reply to its last statement.
func (w *walk) hear(c *holder, r backend.SyncReply) {
	w.t.Helper()
	held := c.g - c.b
	if r.Window != c.window && !r.Carried {
		held, c.spent = 0, 0 // the tokens that it held went with their window
	} else if r.Window != c.window {
		held, c.spent = held+c.debt, c.spent+c.debt // debt is carried as a grant that is spent
	}
	equal(w.t, "what "+c.name+" holds now", r.Granted-r.Returned, held+r.Grant)
	if r.Window != c.window {
		c.moves++
	}
	c.window, c.g, c.b, c.debt = r.Window, r.Granted, r.Returned, r.Debt
	c.total, c.used = r.Total, w.limit.Tokens-r.Remaining
}

func (w *walk) takeSome() {
	w.t.Helper()
	r := w.takeRequest(1 + w.some(w.limit.Tokens-1))
	got := must(w.store.Take(w.at(w.now), r))(w.t)
	equal(w.t, "take", got, w.counter.Take(r, w.us()))
	w.enter(got.Window)
	if !got.Allowed {
		w.seen["refused take"]++
		return
	}
	w.direct += r.Tokens
	if w.rnd.IntN(4) == 0 {
		w.seen["unheard take"]++ // charged, and never settled
		return
	}
	w.seen["take"]++
	w.taken = append(w.taken, taken{got.Window, r.Tokens})
}

// settleSome gives a direct call's charge back, or charges more.
func (w *walk) settleSome() {
	w.t.Helper()
	if len(w.taken) == 0 {
		return
	}
	i := w.rnd.IntN(len(w.taken))
	t := w.taken[i]
	w.taken = append(w.taken[:i], w.taken[i+1:]...)
	open := w.window == t.window && w.open()
	r := backend.SettleRequest{Key: w.key, Window: t.window, Tokens: pick(w, -t.tokens, 1+w.some(w.limit.Tokens/10)), Limit: w.limit.Tokens}
	switch {
	case !open:
		w.seen["late settlement"]++
	case r.Tokens > 0:
		w.seen["overrun"]++
	default:
		w.seen["refund"]++
	}
	got := must(w.store.Settle(w.at(w.now), r))(w.t)
	equal(w.t, "settle", got, w.counter.Settle(r, w.us()))
	equal(w.t, "settled in an open window", got.Open, open)
	if open {
		w.direct += max(r.Tokens, 0)
		w.given -= min(r.Tokens, 0)
	}
}

// reset gives the key a fresh window, which the clients do not learn from it.
func (w *walk) reset() {
	w.t.Helper()
	r := backend.ResetRequest{Key: w.key, Limit: w.limit}
	got := must(w.store.Reset(w.at(w.now), r))(w.t)
	equal(w.t, "reset", got, w.counter.Reset(r, w.us()))
	equal(w.t, "remaining after a reset", got.Remaining, w.limit.Tokens)
	if got.Window == 0 {
		return
	}
	if got.Window == w.window {
		w.t.Fatal("the window has the name of the one that it replaces")
	}
	w.seen["reset"]++
	w.void = max(w.void, w.window)
	w.window, w.direct, w.given = got.Window, 0, 0
}

// spend uses up a part of c's stock, unless its window is over.
func (w *walk) spend(c *holder) {
	if c.window >= w.end(w.now) {
		n := w.some(c.stock())
		c.spent += n
		w.seen["spent"] += int(min(n, 1))
	}
}

// lose empties the store.
func (w *walk) lose() {
	w.seen["loss"]++
	w.key, w.counter, w.window, w.void = newKey(), counter.Counter{}, 0, 0
	w.taken, w.direct, w.given = nil, 0, 0
	w.losses++
}

// settle acknowledges every client's statement and counts everything: the store has
// charged exactly what the clients hold and owe. After losses it may have charged more:
// tokens that a client reported as charged, and whose owners the store has forgotten. It
// may also have charged less, by the charges of direct callers before the holders spoke,
// which the holders then claim as their own.
func (w *walk) settle() {
	w.t.Helper()
	for range 2 { // the first may open or adopt a window
		for _, c := range w.clients {
			w.hear(c, w.tell(backend.SyncRequest{
				Key: w.key, Client: c.name, Limit: w.limit, Window: c.window, Granted: c.g, Returned: c.b, Debt: c.debt,
			}))
		}
	}
	if !w.open() {
		return
	}
	held := w.direct - w.given
	for _, c := range w.clients {
		held += c.g - c.b + c.debt
	}
	rest := w.check().Remaining
	if !w.lossy {
		equal(w.t, "remaining", rest, max(w.limit.Tokens-held, 0))
	} else if most := w.limit.Tokens - held + w.direct; rest > max(most, 0) {
		w.t.Fatalf("%d tokens remain, though %d of %d are held", rest, held, w.limit.Tokens)
	}
}

// pick returns a random element of list.
func pick[T any](w *walk, list ...T) T { return list[w.rnd.IntN(len(list))] }

// some returns a random number from 0 to n, often a small one.
func (w *walk) some(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return w.rnd.Int64N(pick(w, min(n, 3), n) + 1)
}

// pause returns a random time, mostly within a window.
func (w *walk) pause() time.Duration {
	return pick(w, 0, time.Microsecond, 999*time.Microsecond, time.Second, 7*time.Second, far/3, far+time.Second)
}
