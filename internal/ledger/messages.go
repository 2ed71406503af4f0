package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// The parts in lua repeat these numbers.
const (
	sample    = 256  // accounts looked at in one step: of more, some are drawn at random
	crowd     = 1024 // the same, to tell all that the limit is used up, or that tokens are back
	atOnce    = 32   // clients called by one step
	few       = 4    // clients told of a single token that is back: some have no use for it
	mostCalls = 4    // of a client that does not answer
	patience  = 100  // ms, or a 20th of the window, in which it may answer all the same
	pause     = 250  // ms, or a 20th of the window, before clients are told again that tokens are back
)

// Message is to one process.
type Message struct {
	Process string
	Kind    backend.Kind
	Window  Window
	Limit   int64
}

// recalls is what a head keeps about the messages in its window. The zero value means that there
// was none.
type recalls struct {
	out   int64 // clients that were called and have not stated since
	at    int64 // when clients were called last, Unix ms, except for repeated calls
	calls int64 // how often these were called, the last of them at least; 0 = nobody was, in this window
	told  int64 // 1 = all were told that the limit is used up; or when some were told that tokens are back, Unix ms
}

// waits reports whether a client that was called may still answer.
func (s *step) waits() bool {
	h := s.c.head
	return h.out > 0 && (h.calls <= mostCalls || s.now/1000-h.at < min(s.length()/20, patience))
}

// idle is at most how many tokens lie idle in the client until it states the next time: what it holds now and
// what it gets beyond its need.
func (s *step) idle() int64 {
	idle := max(s.reply.Grant-s.Need, 0)
	if s.Window == s.c.head.Window || s.runs {
		idle += s.Idle
	}
	if s.Deaf || s.Leaving {
		return 0
	}
	return min(idle, backend.MaxTokens-(s.c.head.idle-s.was.idle))
}

// messages returns those that the statement gives rise to. It comes last, because a recall changes
// the accounts of others.
func (s *step) messages() []Message {
	h := s.c.head
	if s.Client == "" || s.c.end == 0 {
		return nil
	}
	ms, idle := s.now/1000, h.idle-h.accounts[s.Client].idle
	dry := s.c.count >= s.Limit
	short := s.Want > 0 && (dry || s.reply.Grant < max(s.Need, 1))
	kind, called := backend.Recall, []string(nil)
	switch {
	case short && idle > 0 && (s.Need > 0 || h.calls > 0 || idle > s.Limit/100):
		if called = s.recall(idle); len(called) > 0 {
			h.at, h.calls = ms, 1
		}
	case short && s.Waited && h.out > 0 && h.calls <= mostCalls:
		if h.calls++; h.calls <= mostCalls {
			called = s.some(sample, atOnce, func(a account) bool { return a.called })
		}
	case dry && s.reply.Grant < s.Need && h.told == 0 && !s.waits():
		kind, called = backend.Exhausted, s.some(crowd, crowd, present)
		h.told = 1
	case h.told > 0 && !dry && ms-h.told >= min(s.length()/20, pause):
		kind, called = backend.Again, s.some(crowd, int(max(few, min(s.Limit-s.c.count, crowd))), present)
		h.told = ms
	}
	s.reply.Idle = h.idle - h.accounts[s.Client].idle
	if s.waits() {
		s.reply.Called = h.out
	}
	out := make([]Message, len(called))
	for i, client := range called {
		out[i] = Message{backend.Process(client), kind, h.Window, s.Limit}
	}
	return out
}

func present(a account) bool { return !a.left }

// some draws up to most other clients of the window for which pick holds, of at most n that it looks
// at.
func (s *step) some(n, most int, pick func(account) bool) (names []string) {
	h := s.c.head
	for name, a := range h.accounts {
		if n--; n < 0 {
			break
		}
		if name != s.Client && a.Window == h.Window && pick(a) {
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

// recall calls idle tokens back: half of what lies idle in others, or twice what callers wait for,
// the largest first. To take all from everybody would make each of them ask again, though most
// would have used it.
func (s *step) recall(idle int64) []string {
	h := s.c.head
	names := s.some(sample, sample, func(a account) bool { return a.idle > 0 })
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(h.accounts[b].idle, h.accounts[a].idle), cmp.Compare(a, b))
	})
	covered := int64(0)
	for i, name := range names {
		if i == atOnce || covered >= idle-covered && covered >= 2*s.Need {
			return names[:i]
		}
		a := h.accounts[name]
		covered += a.idle
		h.idle -= a.idle
		h.out++
		a.idle, a.called = 0, true
		h.accounts[name] = a
	}
	return names
}
