package backendtest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// How many random walks a test makes, and of how many steps.
const (
	walks = 8
	steps = 300
)

// seedVariable is the environment variable by which a walk that failed is
// repeated.
const seedVariable = "RESERVOIR_SEED"

func testWalk(t *testing.T, s backend.Store)         { walkAll(t, s, false) }
func testWalkWithLoss(t *testing.T, s backend.Store) { walkAll(t, s, true) }

// walkAll makes random walks and makes sure that they went everywhere.
func walkAll(t testing.TB, s backend.Store, lossy bool) {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("to repeat: %s=%d", seedVariable, seed)
	seen := make(map[string]int)
	for i := range walks {
		newWalk(t, s, rand.New(rand.NewPCG(seed, uint64(i))), lossy, seen).run()
	}
	places := []string{
		"heard", "unheard", "repeated", "late", "recovered", "give-back", "take", "refused take", "unheard take",
		"refund", "roll", "exhausted", "spent", "debt", "leaving",
	}
	if !lossy {
		places = append(places, "late refund")
	} else {
		places = append(places, "loss", "reasserted", "adopted", "carried", "learning")
	}
	for _, place := range places {
		if seen[place] == 0 {
			t.Errorf("the walks never saw: %s (%v)", place, seen)
		}
	}
}

// walk is a random mix of everything that clients, networks and time do to one
// key, against the counter, and against the sum of all replies, also those that a client lost.
type walk struct {
	*bench
	rnd     *rand.Rand
	lossy   bool // the store may lose its data
	now     time.Duration
	clients []*holder
	sent    []letter // statements that may turn up again
	taken   []taken
	given   int64 // refunds to the window, in all
	model   model
	losses  int
	seen    map[string]int
}

// taken is what a direct call was charged.
type taken struct {
	window backend.Window
	tokens int64
}

// letter is a statement on its way.
type letter struct {
	backend.SyncRequest
	from          *holder
	moves, losses int // of the client and of the store, when it was sent
}

// holder is a client as it sees itself.
type holder struct {
	name   string
	window backend.Window
	g, b   int64
	debt   int64
	spent  int64 // of g-b
	total  int64 // as last heard, of window
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
	w.model.reset()
	for i := range 2 + rnd.IntN(4) {
		w.clients = append(w.clients, &holder{name: string(rune('a' + i))})
	}
	return w
}

func (w *walk) run() {
	w.t.Helper()
	for range steps {
		w.step()
		w.model.check(w, w.check(w.now))
		w.bound()
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
		w.refundSome()
	case p < 82:
		w.spend(c)
	case p < 97 || !w.lossy:
		w.now += w.pause()
	default:
		w.lose()
	}
}

// statement is what c would say now, with wishes of all sizes.
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

// tell makes a statement and compares the reply with the model.
func (w *walk) tell(r backend.SyncRequest) backend.SyncReply {
	w.t.Helper()
	r.Key = w.key // the store may have lost its data since
	reply, err := w.store.Sync(w.at(w.now), r)
	w.must(err)
	w.model.sync(w, r, reply)
	return reply
}

func (w *walk) heard(c *holder) {
	w.t.Helper()
	w.seen["heard"]++
	w.hear(c, w.tell(w.statement(c)))
}

// twice tells a statement two times; c hears one of the replies.
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

// late delivers an old statement, whose reply nobody hears. It may be older than
// a loss, or than its client's move to another window, but not than both: the
// client may have moved back by then, and counts anew. A store that is given a
// deadline does not execute what is that old.
func (w *walk) late() {
	w.t.Helper()
	if len(w.sent) == 0 {
		return
	}
	l := pick(w, w.sent[max(0, len(w.sent)-8):]...)
	if l.losses == w.losses || l.moves == l.from.moves {
		w.seen["late"]++
		w.tell(l.SyncRequest)
	}
}

// hear is what a client does with a reply to its last statement.
func (w *walk) hear(c *holder, r backend.SyncReply) {
	w.t.Helper()
	held := c.g - c.b
	if r.Window != c.window && !r.Carried {
		held, c.spent = 0, 0 // what it held went with its window
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
	n := 1 + w.some(w.limit.Tokens-1)
	r := w.take(w.now, n)
	w.model.take(w, backend.TakeRequest{Key: w.key, Limit: w.limit, Tokens: n}, r)
	switch {
	case !r.Allowed:
		w.seen["refused take"]++
	case w.rnd.IntN(4) == 0:
		w.seen["unheard take"]++ // charged, and nobody will refund it
	default:
		w.seen["take"]++
		w.taken = append(w.taken, taken{r.Window, n})
	}
}

// refundSome gives a direct call's charge back. The statement may be repeated.
func (w *walk) refundSome() {
	w.t.Helper()
	if len(w.taken) == 0 {
		return
	}
	i := w.rnd.IntN(len(w.taken))
	t := w.taken[i]
	w.taken = append(w.taken[:i], w.taken[i+1:]...)
	if w.model.window == t.window && w.model.open(w) {
		w.given += t.tokens
		w.model.direct -= t.tokens
	}
	total := max(w.given, t.tokens)
	for range 1 + w.rnd.IntN(2) {
		r := backend.RefundRequest{Key: w.key, Client: "r", Window: t.window, Total: total}
		w.model.refund(w, r, w.refund(w.now, t.window, total))
	}
}

// spend uses up a part of c's stock, which is dead after its window.
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
	w.key = newKey()
	w.taken, w.given = nil, 0
	w.losses++
	w.model.reset()
}

// bound is the law: clients and direct callers together never hold more than
// the limit of the window that is open, while the store keeps its data.
func (w *walk) bound() {
	w.t.Helper()
	if w.lossy {
		return
	}
	held := w.model.direct
	for _, c := range w.clients {
		if c.window == w.model.window {
			held += c.g - c.b
		}
	}
	if held > w.limit.Tokens {
		w.t.Fatalf("%d tokens are held of %d", held, w.limit.Tokens)
	}
}

// settle makes every client heard and counts everything: what the store holds
// charged is what they hold and owe, to the token. After losses it may be more: what a
// client knew to be charged, and of which the store has forgotten whose it is. And it
// may be less by what direct callers were charged before the holders spoke, which these
// then take for their own.
func (w *walk) settle() {
	w.t.Helper()
	for range 2 { // the first may open or adopt a window
		for _, c := range w.clients {
			w.hear(c, w.tell(backend.SyncRequest{
				Key: w.key, Client: c.name, Limit: w.limit, Window: c.window, Granted: c.g, Returned: c.b, Debt: c.debt,
			}))
		}
	}
	held := w.model.direct
	for _, c := range w.clients {
		held += c.g - c.b + c.debt
	}
	if !w.model.open(w) {
		return
	}
	rest := w.check(w.now).Remaining
	if !w.lossy {
		equal(w.t, "remaining", rest, max(w.limit.Tokens-held, 0))
	} else if most := w.limit.Tokens - held + w.model.taken; rest > max(most, 0) {
		w.t.Fatalf("%d tokens remain, though %d of %d are held", rest, held, w.limit.Tokens)
	}
}

// pick returns one of a list.
func pick[T any](w *walk, list ...T) T { return list[w.rnd.IntN(len(list))] }

// some is a random number from 0 to n, often small.
func (w *walk) some(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return w.rnd.Int64N(pick(w, min(n, 3), n) + 1)
}

// pause is a random time, mostly within a window.
func (w *walk) pause() time.Duration {
	return pick(w, 0, time.Microsecond, 999*time.Microsecond, time.Second, 7*time.Second, far/3, far+time.Second)
}
