package counter

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// lua/sync.lua repeats these numbers.
const (
	Sample    = 256  // accounts looked at in one step: more are drawn at random
	crowd     = 1024 // the same, to tell all that the limit is used up, or that tokens are back
	AtOnce    = 32   // clients called by one step
	few       = 4    // clients told of a single token that is back: some have no use for it
	MostCalls = 4    // of a client that does not answer
	Patience  = 100  // ms, or a 20th of the window, in which it may answer all the same
	pause     = 250  // ms, or a 20th of the window, before clients are told again that tokens are back
)

// A Message is to one process.
type Message struct {
	Process string
	backend.Message
}

// recalls is what a ledger keeps about its messages in the window. The zero value means
// that there was none.
type recalls struct {
	out   int64 // clients that were called and have not stated since
	at    int64 // when clients were called last, Unix ms, but for repeated calls
	calls int64 // how often these were called, the last of them at least; 0 = nobody was, in this window
	told  int64 // 1 = all were told that the limit is used up; or when some were told that tokens are back, Unix ms
}

// waits reports whether a client that was called may still answer, in a window of that length.
func (r *recalls) waits(now, length int64) bool {
	return r.out > 0 && (r.calls <= MostCalls || now/1000-r.at < min(length/20, Patience))
}

// idles enters how many tokens lie idle in the client: an upper bound until it states the
// next time. What an older statement says, or one whose reply was lost, lowers nothing.
func (s *statement) idles() {
	c, acc := &s.c, &s.acc
	others := c.idle - acc.idle
	idle, old := int64(0), s.out.Recovered > 0
	if int64(s.Window) == c.stop || s.out.Carried {
		idle = max(s.Idle, 0)
		old = old || !s.out.Carried && (s.Returned < acc.returned || s.Debt < acc.debt)
	}
	idle += max(s.out.Grant-s.Need, 0)
	if old {
		idle = max(idle, acc.idle)
	}
	if s.Idle < 0 || s.Leaving {
		idle = 0
	}
	acc.idle = min(idle, backend.MaxTokens-others)
	c.idle = others + acc.idle
	if acc.called {
		acc.called = false
		c.out--
	}
}

// messages returns those that the statement gives rise to. It comes last, because a recall
// changes the accounts of others.
func (s *statement) messages() []Message {
	c, ms, others := &s.c, s.now/1000, s.c.idle-s.acc.idle
	dry := c.used >= s.Limit.Tokens
	short := s.Want > 0 && (dry || s.out.Grant < max(s.Need, 1))
	kind, called := backend.Recall, []string(nil)
	switch {
	case c.own == nil: // nobody is there
	case short && others > 0 && (s.Need > 0 || c.calls > 0 || others > s.Limit.Tokens/100):
		if called = s.recall(others); len(called) > 0 {
			c.at, c.calls = ms, 1
		}
	case short && s.Waited && c.out > 0 && c.calls <= MostCalls:
		if c.calls++; c.calls <= MostCalls {
			called = s.some(Sample, AtOnce, func(a account) bool { return a.called })
		}
	case dry && s.out.Grant < s.Need && c.told == 0 && !c.waits(s.now, s.length):
		kind, called = backend.Exhausted, s.some(crowd, crowd, present)
		c.told = 1
	case c.told > 0 && !dry && ms-c.told >= min(s.length/20, pause):
		rest := s.Limit.Tokens - c.used
		kind, called = backend.Again, s.some(crowd, int(max(few, min(rest, crowd))), present)
		c.told = ms
	}
	s.out.Idle = c.idle - s.acc.idle
	if c.waits(s.now, s.length) {
		s.out.Called = c.out
	}
	out := make([]Message, len(called))
	for i, client := range called {
		out[i] = Message{backend.Process(client), backend.Message{Kind: kind, Key: s.Key, Window: backend.Window(c.stop), Limit: s.Limit.Tokens}}
	}
	return out
}

func present(a account) bool { return a.present }

// some draws up to most other clients for which pick holds, of at most n that it looks at.
func (s *statement) some(n, most int, pick func(account) bool) (names []string) {
	for name, a := range chance.Order(s.c.own) {
		if n--; n < 0 {
			break
		}
		if name != s.Client && pick(a) {
			names = append(names, name)
		}
	}
	if len(names) > most {
		slices.Sort(names)
		at := int(chance.Part(time.Duration(len(names))))
		names = append(names[at:], names[:at]...)[:most]
	}
	return names
}

// recall calls idle tokens back.
func (s *statement) recall(others int64) []string {
	c := &s.c
	names := s.some(Sample, Sample, func(a account) bool { return a.idle > 0 })
	names = Largest(names, func(name string) int64 { return c.own[name].idle }, others, s.Need)
	for _, name := range names {
		a := c.own[name]
		c.idle -= a.idle
		c.out++
		a.idle, a.called = 0, true
		c.own[name] = a
	}
	return names
}

// Largest returns those of the clients that are called: half of what lies idle in others, or twice
// what requests wait for, the largest first. To take all from everybody would make each of them call
// again, though most would have used it.
func Largest(names []string, idle func(name string) int64, others, need int64) []string {
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(idle(b), idle(a)), cmp.Compare(a, b)) })
	covered := int64(0)
	for i, name := range names {
		if i == AtOnce || covered >= others-covered && covered >= 2*need {
			return names[:i]
		}
		covered += idle(name)
	}
	return names
}
