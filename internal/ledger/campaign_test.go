package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/ledger"
)

// The campaign drives the rules and the accounts through random orders of statements, losses,
// repeats, late copies, returns, kills, Resets, clock steps and losses of data. Its judge knows only which
// window each token was spent in.

// client is one limiter: an account, its stock, and what is on the way.
type client struct {
	account.Absolute
	name        string
	life        int64
	held, spent int64
	offset      int64 // of its clock, us
	deadline    int64 // by its clock: nothing of the window is spent after it
	sent        int64 // when the last statement was sent, by its clock
	seq         int64
	leaving     bool
}

// message is a statement at the store or a reply on its way back.
type message struct {
	at    int64
	to    *client
	life  int64
	q     ledger.Statement
	r     ledger.Reply
	reply bool
}

type world struct {
	*rand.Rand
	limit, length int64
	calendar      bool
	lose, repeat  float64
	clock         int64 // the store's, less real time, us
	now           int64
	c             ledger.Counter
	clients       []*client
	on            []message
	spent         map[ledger.Window]int64
	since         map[ledger.Window]int64 // when the name was first seen, or that of a window that was carried into it
	lost          []int64                 // when data was lost
	names         int
	full          bool
}

func (w *world) some(n int64) int64      { return w.Int64N(n + 1) }
func (w *world) chance(p float64) bool   { return w.Float64() < p }
func (w *world) store() int64            { return w.now + w.clock }
func (w *world) clockOf(c *client) int64 { return w.now + c.offset }
func (w *world) period() (begin, end int64) {
	if !w.calendar {
		return 0, 0
	}
	begin = w.store() / 1000 / w.length * w.length
	return begin, begin + w.length
}

func (w *world) newcomer() *client {
	w.names++
	c := &client{name: fmt.Sprintf("p%d.1", w.names), life: 1, offset: w.some(1e9)}
	c.Begin(1)
	return c
}

// send states c's account.
func (w *world) send(c *client, want int64) {
	q := ledger.Statement{Client: c.name, Want: want, Need: w.some(want), Limit: w.limit, Length: w.length}
	q.Least = w.some(q.Need)
	q.Begin, q.End = w.period()
	q.Exact, q.Waited, q.Leaving, q.Deaf = w.chance(.5), w.chance(.3), want == 0 && w.chance(.3), w.chance(.1)
	q.Idle = c.held
	c.State(&q, w.clockOf(c) < c.deadline)
	c.seq, c.sent, c.leaving = q.Seq, w.clockOf(c), q.Leaving
	m := message{at: w.now + w.some(2000), to: c, life: c.life, q: q}
	if !w.chance(w.lose) {
		w.on = append(w.on, m)
	}
	if w.chance(w.repeat) {
		m.at = w.now + w.some([]int64{2000, 100_000, 2 * w.length * 1000}[w.IntN(3)])
		w.on = append(w.on, m)
	}
}

// arrive delivers m.
func (w *world) arrive(m message) {
	if m.reply {
		w.take(m)
		return
	}
	r, _ := w.c.Sync(m.q, w.store())
	if _, seen := w.since[r.Window]; !seen {
		w.since[r.Window] = w.now
	}
	if r.Mine > r.Grant {
		w.since[r.Window] = min(w.since[r.Window], w.since[m.q.Window])
	}
	if !w.chance(w.lose) {
		late := int64(2000)
		if w.chance(.1) {
			late = w.length * 1000
		}
		m.at, m.r, m.reply = w.now+w.some(late), r, true
		w.on = append(w.on, m)
	}
}

// take gives a reply to its client.
func (w *world) take(m message) {
	c := m.to
	if c.life != m.life {
		return
	}
	counts, kept := c.Take(m.q.Seq, m.r)
	if !counts {
		return
	}
	if !kept {
		c.held, c.spent = 0, 0
	}
	c.held += m.r.Grant
	c.deadline = c.sent + (m.r.Window.End*1000-m.r.Now)*9995/10000
	if m.q.Leaving && c.Settled() && c.held == 0 {
		c.life++
		c.Begin(c.life)
		c.spent, c.deadline = 0, 0
	}
}

// step is one event.
func (w *world) step(t *testing.T) {
	w.now += w.some(w.length * 1000 / 100)
	for i := 0; i < len(w.on); i++ {
		if m := w.on[i]; m.at <= w.now {
			w.on = append(w.on[:i], w.on[i+1:]...)
			w.arrive(m)
			i = -1
		}
	}
	c := w.clients[w.IntN(len(w.clients))]
	switch w.IntN(12) {
	case 0, 1, 2:
		w.send(c, w.some(max(w.limit/2, 1)))
	case 3, 4, 5, 6:
		if n := w.some(c.held); w.clockOf(c) < c.deadline && n > 0 {
			c.held, c.spent = c.held-n, c.spent+n
			w.spend(t, c.Window(), n)
		}
	case 7:
		n := w.some(c.held)
		c.held -= n
		c.GiveBack(n)
		w.send(c, 0)
	case 8: // a refund
		if n := w.some(c.spent); w.clockOf(c) < c.deadline {
			c.held, c.spent = c.held+n, c.spent-n
			w.spent[c.Window()] -= n
		}
	case 9:
		w.send(c, 0)
	}
	require.Equal(t, c.Charged(), c.held+c.spent, "the account is not what is held and spent")
}

func (w *world) spend(t *testing.T, name ledger.Window, n int64) {
	w.spent[name] += n
	losses := int64(0)
	for _, at := range w.lost {
		if at >= w.since[name] {
			losses++
		}
	}
	require.LessOrEqual(t, w.spent[name], w.limit*(1+losses), "over in %v after %d losses", name, losses)
	w.full = w.full || w.spent[name] == w.limit
}

// rest lets every client state its account, with all replies coming.
func (w *world) rest() {
	w.on, w.lose, w.repeat = nil, 0, 0
	for range 2 {
		for _, c := range w.clients {
			w.send(c, 0)
			for len(w.on) > 0 {
				m := w.on[0]
				w.on = w.on[1:]
				w.arrive(m)
			}
		}
	}
}

func draw(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), spent: map[ledger.Window]int64{}, since: map[ledger.Window]int64{}, now: 1e15}
	w.limit = []int64{1, 5, 12, 50, 600}[w.IntN(5)]
	w.length = []int64{100, 1000, 10_000, 60_000}[w.IntN(4)]
	w.calendar = w.chance(.3)
	w.lose, w.repeat = []float64{0, .05, .3}[w.IntN(3)], []float64{0, .05, .4}[w.IntN(3)]
	for range 1 + w.IntN(5) {
		w.clients = append(w.clients, w.newcomer())
	}
	return w
}

// TestCampaign: with all data kept, no window is over, and at rest the count is what is held and
// spent.
func TestCampaign(t *testing.T) {
	full, rested := 0, 0
	for seed := range uint64(*ledger.Runs) {
		w := draw(seed)
		exact := true
		for range 600 {
			switch {
			case w.chance(.003): // a kill
				i := w.IntN(len(w.clients))
				w.clients[i], exact = w.newcomer(), false
			case w.chance(.003):
				w.c.Reset(w.store())
			case w.chance(.002): // the store's clock steps back
				w.clock, exact = w.clock-w.some(3*w.length*1000), false
			}
			w.step(t)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		w.rest()
		if w.full {
			full++
		}
		if name, used := w.c.Read(w.store()); name.End != 0 && exact {
			rested++
			in := int64(0)
			for _, c := range w.clients {
				if c.Window() == name {
					in += c.held
				}
			}
			require.Equal(t, w.spent[name]+in, used, "seed %d: charged, not held or spent, in %v", seed, name)
		}
	}
	require.Positive(t, full)
	require.Positive(t, rested)
	t.Logf("%d runs reached the limit, %d were at rest in an open window", full, rested)
}

// TestLosses: each loss of data admits at most one more limit, and what the clients hold and have spent
// is charged again as soon as they have stated it.
func TestLosses(t *testing.T) {
	for seed := range uint64(*ledger.Runs) {
		w := draw(seed)
		var snapshot ledger.Counter
		for range 600 {
			switch {
			case w.chance(.01):
				snapshot = w.c.Clone()
			case w.chance(.005):
				w.lost = append(w.lost, w.now)
				switch w.IntN(5) {
				case 0:
					w.c = ledger.Counter{}
				case 1:
					w.c = snapshot.Clone()
				case 2:
					w.c.LoseLedger()
				case 3:
					w.c.LoseCount()
				case 4:
					w.c.LoseEnd()
				}
			}
			w.step(t)
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		w.rest()
		name, used := w.c.Read(w.store())
		in := int64(0)
		for _, c := range w.clients {
			if c.Window() == name && name.End != 0 {
				in += c.held + c.spent
			}
		}
		require.GreaterOrEqual(t, used, in, "seed %d", seed)
	}
}
