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
	Sample    = 256 // accounts looked at in one step: of more, some are drawn at random
	AtOnce    = 32  // clients called or told by one step; to tell more, one message goes to all
	few       = 4   // clients told of a single token that is back: some have no use for it
	MostCalls = 4   // of a client that does not answer
	pause     = 250 // ms, or a 20th of the window, before clients are told again that tokens are back
)

// Message is to one process, or to all if that is "". The store adds its Key and Counter.
type Message struct {
	Process string
	backend.Message
}

// recalls is what a head keeps about the messages in its window. The zero value means that there
// was none.
type recalls struct {
	out   int64 // clients that were called and may still answer
	at    int64 // when they were, or one of them has answered, Unix ms
	calls int64 // how often these were called, the last of them at least; 0 = nobody was, in this window
	told  int64 // 1 = all were told that the limit is used up; or when some were told that tokens are back, Unix ms
}

// waits reports whether a client that was called may still answer: for a part of the window after the call or the last answer,
// unless a client has given up before.
func (s *step) waits() bool {
	h := s.head
	return h.out > 0 && s.now/1000-h.at < s.length()/backend.RecallPart
}

// idle is at most how many tokens lie idle in the client until it states the next time: what it holds now and
// what it gets beyond its need.
func (s *step) idle() int64 {
	idle := max(s.reply.Grant-s.Need, 0)
	if s.Window == s.head.Window || s.runs {
		idle += s.Idle
	}
	if s.Deaf || s.Leaving {
		return 0
	}
	return min(idle, backend.MaxTokens-(s.head.idle-s.was.idle))
}

// messages returns those that the statement gives rise to. It comes last, because a recall changes
// the accounts of others.
func (s *step) messages() []Message {
	h := s.head
	if s.Client == "" || s.end == 0 {
		return nil
	}
	ms, idle := s.now/1000, h.idle-s.own.idle
	dry := s.count >= s.Limit.Tokens
	short := s.Want > 0 && (dry || s.reply.Grant < max(s.Need, 1))
	kind, called := backend.Recall, []string(nil)
	if short && s.GaveUp || !s.waits() {
		h.out = 0
	}
	switch {
	case s.until > 0: // what comes back is not granted
		return nil
	case short && idle > 0 && (s.Need > 0 || h.calls > 0 || idle > s.Limit.Tokens/100):
		before := h.out
		if called = s.recall(idle); len(called) > 0 {
			if h.calls = 1; before == 0 {
				h.at = ms
			}
		}
	case short && s.Waited && h.out > 0 && h.calls < MostCalls:
		h.calls++
		called = s.some(Sample, AtOnce, func(a *account) bool { return a.called })
	case dry && s.reply.Grant < s.Need && h.told == 0 && h.out == 0 && s.own.idle == 0: // nothing lies idle anywhere
		if kind, h.told = backend.Exhausted, 1; h.clients > AtOnce {
			called = []string{""}
		} else {
			called = s.some(Sample, AtOnce, present)
		}
	case h.told > 0 && !dry && ms-h.told >= min(s.length()/20, pause):
		kind, h.told, called = backend.Again, ms, s.refused()
	}
	s.reply.Idle = h.idle - s.own.idle
	s.reply.Called = h.out
	return s.to(called, kind)
}

// to is a message to each of the clients.
func (s *step) to(clients []string, kind backend.Kind) []Message {
	out := make([]Message, len(clients))
	for i, client := range clients {
		out[i] = Message{backend.Process(client), backend.Message{Kind: kind, Window: s.head.Window, Limit: s.Limit.Tokens}}
	}
	return out
}

// refused are the clients to tell that tokens are back: some of them, as there are tokens, or all.
func (s *step) refused() []string {
	rest := s.Limit.Tokens - s.count
	if clients := s.head.clients; clients > AtOnce && rest > clients/few {
		return []string{""}
	}
	return s.some(Sample, int(max(few, min(rest, AtOnce))), present)
}

func present(a *account) bool { return !a.left }

// some draws up to most other clients of the window for which pick holds, of at most n that it looks
// at.
func (s *step) some(n, most int, pick func(*account) bool) (names []string) {
	window, self := s.head.Window, s.Client // or all of s would escape to the heap
	for name, a := range chance.Order(s.head.accounts) {
		if n--; n < 0 {
			break
		}
		if name != self && a.Window == window && pick(a) {
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
func (s *step) recall(idle int64) []string {
	return s.call(s.some(Sample, Sample, func(a *account) bool { return a.idle > 0 }), idle, s.Need)
}

// call calls the idle tokens of some of the clients back; see Largest.
func (s *step) call(names []string, idle, need int64) []string {
	h := s.head
	names = Largest(names, func(name string) int64 { return h.accounts[name].idle }, idle, need)
	for _, name := range names {
		a := h.accounts[name]
		h.idle -= a.idle
		h.out++
		a.idle, a.called = 0, true
	}
	return names
}

// Largest returns those of the clients that are called: half of what lies idle in others, or twice
// what callers wait for, the largest first. To take all from everybody would make each of them ask
// again, though most would have used it.
func Largest(names []string, held func(name string) int64, idle, need int64) []string {
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(held(b), held(a)), cmp.Compare(a, b)) })
	covered := int64(0)
	for i, name := range names {
		if i == AtOnce || covered >= idle-covered && covered >= 2*need {
			return names[:i]
		}
		covered += held(name)
	}
	return names
}
