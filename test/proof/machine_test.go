package proof

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// machine is one key under a random sequence of operations, one after the other,
// which rapid makes shorter when one of them breaks a rule. The model follows all
// of them; where a reply is lost it follows every outcome that there may have been.
type machine struct {
	target
	key     string
	limit   backend.Limit
	now     int64
	states  []state // that the key may be in
	people  [people]holder
	letters []request
	tickets []request
	lossy   bool
	over    int64 // tokens that may be above the limit: overruns, and what resets allow
	void    map[backend.Window]bool
	seen    map[string]int
}

func newMachine(t *rapid.T, at target, lossy bool, seen map[string]int) *machine {
	m := &machine{target: at, key: newKey(), now: base, states: []state{{}}, lossy: lossy, void: map[backend.Window]bool{}, seen: seen}
	m.limit = backend.Limit{Tokens: rapid.Int64Range(1, 24).Draw(t, "limit"), Window: window}
	for i := range m.people {
		m.people[i].who = i
	}
	return m
}

// actions are what may happen next.
func (m *machine) actions() map[string]func(*rapid.T) {
	all := map[string]func(*rapid.T){
		"sync":        func(t *rapid.T) { m.sync(t, "") },
		"sync again":  m.again,
		"lost reply":  func(t *rapid.T) { m.sync(t, "lost reply") },
		"spend":       m.spend,
		"give back":   m.giveBack,
		"overrun":     m.overruns,
		"take":        m.take,
		"check":       func(t *rapid.T) { m.must(t, request{op: "check"}) },
		"reset":       m.reset,
		"settle":      m.settle,
		"old letter":  m.letter,
		"time passes": m.pass,
		"":            m.bound,
	}
	if m.lossy {
		all["lose data"] = m.forget
	}
	return all
}

// must carries out q, whose reply must be right, and returns it.
func (m *machine) must(t *rapid.T, q request) reply {
	q.key, q.limit, q.now = m.key, m.limit, m.now
	r, err := m.do(q)
	if err != nil {
		t.Fatal(err)
	}
	m.follow(t, q, r)
	return r
}

// follow keeps the states that explain the reply.
func (m *machine) follow(t *rapid.T, q request, r reply) {
	next := map[state]bool{}
	for _, s := range m.states {
		for _, s := range s.step(q, r) {
			next[s.(state)] = true
		}
	}
	if len(next) == 0 {
		t.Fatalf("%+v\n%s", r, m.states[0].expected(q))
	}
	m.states = m.states[:0]
	for s := range next {
		m.states = append(m.states, s)
	}
	if len(m.states) > 1 {
		m.seen["several may be"]++
	}
}

func (m *machine) statement(t *rapid.T) request {
	h := &m.people[rapid.IntRange(0, people-1).Draw(t, "client")]
	want := rapid.Int64Range(0, m.limit.Tokens+2).Draw(t, "want")
	need := rapid.Int64Range(0, want).Draw(t, "need")
	strand := rapid.SampledFrom([]int64{-1, 0, 1, 5}).Draw(t, "strand")
	q := request{op: "sync", who: h.who, sync: h.statement(m.key, m.limit, want, need, strand)}
	q.sync.Peers = rapid.Int64Range(0, 5).Draw(t, "peers")
	q.sync.Pace = rapid.Int64Range(0, m.limit.Tokens).Draw(t, "pace")
	m.letters = append(m.letters, q)
	return q
}

func (m *machine) sync(t *rapid.T, fate string) {
	q := m.statement(t)
	if fate == "" {
		m.hear(q.who, m.must(t, q).sync)
		return
	}
	q.key, q.limit, q.now = m.key, m.limit, m.now
	if _, err := m.do(q); err != nil {
		t.Fatal(err)
	}
	m.follow(t, q, reply{unknown: true})
	m.seen[fate]++
}

// again says a statement twice at one instant: both replies grant the same. The exception is
// the last millisecond of a window that a reset has made void, if the reset's window is over
// then. The first statement opens the next window. The second cannot know why the client's
// window is not the open one, and carries over what the client held in it.
func (m *machine) again(t *rapid.T) {
	q := m.statement(t)
	first := m.must(t, q)
	second := m.must(t, q)
	if first.sync.Grant != second.sync.Grant && !m.void[q.sync.Window] {
		t.Fatalf("told twice, granted %d and %d", first.sync.Grant, second.sync.Grant)
	}
	m.seen["told twice"]++
	m.hear(q.who, second.sync)
}

func (m *machine) hear(who int, r backend.SyncReply) {
	h := &m.people[who]
	for what, was := range map[string]bool{
		"rolled": h.window != 0 && r.Window > h.window, "recovered": r.Recovered > 0, "re-asserted": r.Reasserted > 0,
		"recovered and granted": r.Recovered > 0 && r.Grant > r.Recovered, "learning": r.Learning, "carried": r.Carried,
		"exhausted": r.Window != 0 && r.Remaining == 0,
	} {
		if was {
			m.seen[what]++
		}
	}
	h.hear(r)
}

func (m *machine) spend(t *rapid.T) {
	h := &m.people[rapid.IntRange(0, people-1).Draw(t, "client")]
	h.spent += rapid.Int64Range(0, max(h.stock(), 0)).Draw(t, "spent")
}

func (m *machine) giveBack(t *rapid.T) {
	h := &m.people[rapid.IntRange(0, people-1).Draw(t, "client")]
	if n := rapid.Int64Range(0, max(h.stock(), 0)).Draw(t, "given back"); n > 0 {
		h.back += n
		m.seen["give-back"]++
	}
}

func (m *machine) reset(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "patience") != 0 {
		return
	}
	if w := m.must(t, request{op: "reset"}).state.Window; w != 0 {
		m.seen["reset"]++
		m.void[w+1] = true
		m.over += m.limit.Tokens // what is held of the old window
	}
}

// overruns settles above the charge, which the next statement says.
func (m *machine) overruns(t *rapid.T) {
	if h := &m.people[rapid.IntRange(0, people-1).Draw(t, "client")]; h.window != 0 {
		n := rapid.Int64Range(1, 5).Draw(t, "overrun")
		h.debt, m.over = h.debt+n, m.over+n
		m.seen["overrun"]++
	}
}

func (m *machine) take(t *rapid.T) {
	q := request{op: "take", tokens: rapid.Int64Range(1, m.limit.Tokens).Draw(t, "tokens")}
	r := m.must(t, q)
	if !r.allowed {
		m.seen["refused take"]++
		return
	}
	q.op, q.window = "settle", r.state.Window
	m.tickets = append(m.tickets, q)
}

func (m *machine) settle(t *rapid.T) {
	if len(m.tickets) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.tickets)-1).Draw(t, "ticket")
	q := m.tickets[i]
	m.tickets = append(m.tickets[:i], m.tickets[i+1:]...)
	if rapid.Bool().Draw(t, "overrun") {
		q.tokens = rapid.Int64Range(1, 5).Draw(t, "tokens")
		m.over += q.tokens
	} else {
		q.tokens = -q.tokens
	}
	switch open := m.must(t, q).settled.Open; {
	case !open:
		m.seen["late settlement"]++
	case q.tokens < 0:
		m.seen["refunded"]++
	default:
		m.seen["settled above"]++
	}
}

// letter delivers an old statement whose reply nobody hears.
func (m *machine) letter(t *rapid.T) {
	if len(m.letters) > 0 {
		m.must(t, m.letters[rapid.IntRange(0, len(m.letters)-1).Draw(t, "letter")])
		m.seen["late"]++
	}
}

func (m *machine) pass(t *rapid.T) {
	m.now += rapid.SampledFrom([]int64{1, 999, 1000, 1_000_000, 7_000_000, 31_000_000, 60_000_000, 61_000_000}).Draw(t, "us")
}

func (m *machine) forget(*rapid.T) {
	m.lose(m.key)
	m.states, m.letters = []state{{}}, nil
	m.seen["lost data"]++
}

// bound: while the store keeps its data nobody holds more than the limit, and no more is
// charged but for overruns and resets.
func (m *machine) bound(t *rapid.T) {
	if m.lossy {
		return
	}
	held := map[backend.Window]int64{}
	for _, h := range m.people {
		if held[h.window] += h.granted - h.back; h.window != 0 && held[h.window] > m.limit.Tokens+m.over {
			t.Fatalf("%d tokens are held of %d", held[h.window], m.limit.Tokens)
		}
	}
	for _, s := range m.states {
		if s.used > m.limit.Tokens+m.over {
			t.Fatalf("%d tokens are charged of %d", s.used, m.limit.Tokens)
		}
	}
}

var everywhere = []string{
	"several may be", "lost reply", "told twice", "rolled", "recovered", "exhausted", "give-back", "refused take",
	"refunded", "settled above", "late settlement", "late", "overrun", "reset",
}

// TestMachine: every reply of the scripts is right, whatever came before it.
func TestMachine(t *testing.T) {
	server := redistest.Start(t)
	at := onRedis(t, redisstore.New(server.Client()), server.Client())
	for _, lossy := range []bool{false, true} {
		t.Run(fmt.Sprint("lossy=", lossy), func(t *testing.T) {
			seen := map[string]int{}
			rapid.Check(t, func(t *rapid.T) {
				m := newMachine(t, at, lossy, seen)
				t.Repeat(m.actions())
			})
			visited(t, seen, everywhere)
			if lossy {
				visited(t, seen, []string{"lost data", "re-asserted", "learning", "carried"})
			} else {
				visited(t, seen, []string{"recovered and granted"})
			}
		})
	}
}

// TestMachineNotices: it notices each of these deliberate bugs.
func TestMachineNotices(t *testing.T) {
	for name, bug := range bugs {
		if name == "who looks and then takes is not alone" {
			continue // here it is
		}
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				rapid.Check(r, func(t *rapid.T) {
					m := newMachine(t, target{Store: bug(memstore.New())}, false, map[string]int{})
					t.Repeat(m.actions())
				})
			}()
			<-done
			require.True(t, r.failed, "nobody noticed")
		})
	}
	t.Run("none", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			m := newMachine(t, target{Store: memstore.New()}, false, map[string]int{})
			t.Repeat(m.actions())
		})
	})
}

// recorder is a test that may fail without failing the one around it.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Failed() bool          { return r.failed }
func (r *recorder) Fail()                 { r.failed = true }
func (r *recorder) FailNow()              { r.failed = true; runtime.Goexit() }
func (r *recorder) Log(...any)            {}
func (r *recorder) Logf(string, ...any)   {}
func (r *recorder) Error(...any)          { r.failed = true }
func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) Fatal(...any)          { r.FailNow() }
func (r *recorder) Fatalf(string, ...any) { r.FailNow() }
