package rolling

import (
	"slices"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/ledger"
)

// patience is how long a client that was called in vain may still answer, in ms, or a 20th of the window.
const patience = 100

// waits reports whether a client that was called may still answer.
func (r *Ring) waits(at int64) bool {
	return r.out > 0 && (r.calls <= ledger.MostCalls || at-r.at < min(r.length.Microseconds()/backend.Slices, patience*1000))
}

// messages returns those that the statement gives rise to: idle tokens come back before the
// client refuses. It comes last, because it changes the accounts of others. A rolling limit is
// never used up for long, so nobody is told of that.
func (s *statement) messages() []ledger.Message {
	r, others := &s.r, s.r.idle-s.acc.idle
	short := s.Want > 0 && (r.sum >= s.Limit.Tokens || s.out.Grant < max(s.Need, 1))
	var called []string
	switch {
	case short && others > 0 && (s.Need > 0 || r.calls > 0 || others > s.Limit.Tokens/100):
		if called = s.recall(others); len(called) > 0 {
			r.at, r.calls = s.at, 1
		}
	case short && s.Waited && r.out > 0 && r.calls <= ledger.MostCalls:
		if r.calls++; r.calls <= ledger.MostCalls {
			called = s.some(ledger.AtOnce, func(a account) bool { return a.called })
		}
	case r.out == 0:
		r.calls = 0
	}
	s.out.Idle = max(r.idle-s.acc.idle, 0)
	if r.waits(s.at) {
		s.out.Called = r.out
	}
	out := make([]ledger.Message, len(called))
	for i, client := range called {
		m := backend.Message{Kind: backend.Recall, Key: s.Key, Window: backend.SliceEnd(r.own[client].slice, r.length), Limit: s.Limit.Tokens}
		out[i] = ledger.Message{Process: backend.Process(client), Message: m}
	}
	return out
}

// some draws up to most other clients for which pick holds, of those that it looks at.
func (s *statement) some(most int, pick func(account) bool) (names []string) {
	looked := 0
	for name, a := range chance.Order(s.r.own) {
		if looked++; looked > ledger.Sample {
			break
		}
		if name != s.Client && a.slice >= s.r.low && pick(a) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), most)]
}

// recall calls idle tokens back.
func (s *statement) recall(others int64) []string {
	r := &s.r
	names := s.some(ledger.Sample, func(a account) bool { return a.idle > 0 })
	names = ledger.Largest(names, func(name string) int64 { return r.own[name].idle }, others, s.Need)
	for _, name := range names {
		a := r.own[name]
		r.idle = max(r.idle-a.idle, 0)
		r.out++
		a.idle, a.called = 0, true
		r.own[name] = a
	}
	return names
}
