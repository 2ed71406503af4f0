package reservoir

import (
	"iter"
	"time"

	"github.com/go-reservoir/reservoir/internal/key"
)

// Stats is what a [Limiter] has done since [New], over all keys. Counts of tokens
// balance whenever no call is under way:
//
//	Taken + Refunded == Spent + Returned + Expired + Held
type Stats struct {
	Keys    int   // held in memory now
	Unheard int64 // shards, of keys in memory, whose messages do not come here now: see [Hooks].Hearing; or the store sends none

	Taken    int64 // tokens that the store charged to this process
	Refunded int64 // tokens taken back from requests, by Settle or Refund or because callers gave up
	Spent    int64 // tokens that admitted requests used, including refunded tokens, excluding Owed
	Returned int64 // tokens given back to the store
	Expired  int64 // tokens whose window ended before they were used
	Held     int64 // tokens in memory now: to be spent, or on their way back

	// Overdrawn is how many tokens were used above the limit: settled above a charge, or
	// admitted by the failure policy. While the store keeps its data, and no Result is
	// refunded twice, the limit is exceeded by no more than this. It does not go down when tokens come back afterwards, and it
	// includes tokens that were not stated to the store before the window ended.
	Overdrawn int64

	StoreCalls int64 // calls to the store, of any kind
	Syncs      int64 // the store calls that are statements of account: fetches and give-backs
	Waited     int64 // requests that waited on the network
	Admitted   int64 // requests admitted by any means, except those of Unlimited
	Denied     int64 // requests refused
	Failed     int64 // requests that ended in a StoreError
	Shadowed   int64 // the denied requests that passed because of WithShadow

	Prefetches int64 // fetches ahead of need
	Probes     int64 // fetches that check whether an exhausted key has tokens again
	GiveBacks  int64 // returns of idle tokens, except those of Close and eviction
	Stranded   int64 // the part of Held whose key is exhausted in the store, as far as this process knows

	Fallbacks int64 // requests that the failure policy admitted or refused because the store was away
	Owed      int64 // tokens admitted by the failure policy or settled, which the store must still charge

	Recovered  int64 // tokens whose grant was lost on the way and handed over again
	Reasserted int64 // tokens that the store had forgotten and has charged again
	Unknown    int64 // tokens of direct calls, and of their settlements, that failed and may have been carried out
}

// Figure is a field of [Stats] as a metric, for export to a monitoring system. Packages
// promlimit and otellimit make their metrics from it.
type Figure struct {
	Name  string // lower-case words joined by dots, such as "tokens.spent"
	Unit  string // what Value counts: "token", "call", "request", "key" or "shard"
	Help  string // one sentence
	Gauge bool   // Value may go down; otherwise it is a counter, which never does
	Value func(s *Stats) int64
}

// Figures returns every field of [Stats] once. The linker leaves it out of a program that
// does not call it.
func Figures() []Figure {
	const gauge, counter = true, false
	return []Figure{
		{"keys", "key", "Keys held in memory.", gauge, func(s *Stats) int64 { return int64(s.Keys) }},
		{"shards.unheard", "shard", "Shards whose messages do not come to this process.", gauge, func(s *Stats) int64 { return s.Unheard }},

		{"tokens.taken", "token", "Tokens that the store charged to this process.", counter, func(s *Stats) int64 { return s.Taken }},
		{"tokens.refunded", "token", "Tokens that Settle and Refund took back from requests.", counter, func(s *Stats) int64 { return s.Refunded }},
		{"tokens.spent", "token", "Tokens that admitted requests used, refunded ones included.", counter, func(s *Stats) int64 { return s.Spent }},
		{"tokens.returned", "token", "Tokens given back to the store.", counter, func(s *Stats) int64 { return s.Returned }},
		{"tokens.expired", "token", "Tokens whose window ended before they were used.", counter, func(s *Stats) int64 { return s.Expired }},
		{"tokens.overdrawn", "token", "Tokens that were used above the limit: settled above the charge, or admitted without the store.", counter, func(s *Stats) int64 { return s.Overdrawn }},
		{"tokens.held", "token", "Tokens in memory, to be spent.", gauge, func(s *Stats) int64 { return s.Held }},

		{"store.calls", "call", "Calls to the store, of any kind.", counter, func(s *Stats) int64 { return s.StoreCalls }},
		{"store.syncs", "call", "Calls to the store that were statements of account: fetches and give-backs.", counter, func(s *Stats) int64 { return s.Syncs }},
		{"requests.waited", "request", "Requests that waited on the network.", counter, func(s *Stats) int64 { return s.Waited }},
		{"requests.admitted", "request", "Requests admitted.", counter, func(s *Stats) int64 { return s.Admitted }},
		{"requests.denied", "request", "Requests refused.", counter, func(s *Stats) int64 { return s.Denied }},
		{"requests.shadowed", "request", "Requests that a limit would have refused and that passed in shadow.", counter, func(s *Stats) int64 { return s.Shadowed }},
		{"requests.failed", "request", "Requests that ended in a store error.", counter, func(s *Stats) int64 { return s.Failed }},

		{"prefetches", "call", "Fetches ahead of need.", counter, func(s *Stats) int64 { return s.Prefetches }},
		{"probes", "call", "Fetches that look whether an exhausted key has tokens again.", counter, func(s *Stats) int64 { return s.Probes }},
		{"give_backs", "call", "Returns of idle tokens to the store.", counter, func(s *Stats) int64 { return s.GiveBacks }},
		{"tokens.stranded", "token", "Tokens held whose key is exhausted in the store.", gauge, func(s *Stats) int64 { return s.Stranded }},

		{"requests.fallback", "request", "Requests that the failure policy admitted or refused because the store was away.", counter, func(s *Stats) int64 { return s.Fallbacks }},
		{"tokens.owed", "token", "Tokens that were used without the store, which it must still charge.", gauge, func(s *Stats) int64 { return s.Owed }},

		{"tokens.recovered", "token", "Tokens whose grant was lost on the way and handed over again.", counter, func(s *Stats) int64 { return s.Recovered }},
		{"tokens.reasserted", "token", "Tokens that the store had forgotten and has charged again.", counter, func(s *Stats) int64 { return s.Reasserted }},
		{"tokens.unknown", "token", "Tokens of direct calls that failed and may have been charged for nothing.", counter, func(s *Stats) int64 { return s.Unknown }},
	}
}

// Stats returns the present counts. Only Keys, Unheard, Held, Stranded and Owed ever go down. Stats
// visits every key, under each key's lock, so call it as often as metrics are scraped, not
// for each request.
func (l *Limiter) Stats() (s Stats) {
	c := &l.env.Counts
	c.Read(func() {
		s.Denied, s.Spent = c.Denied.Load(), c.Spent.Load()
		for k := range l.env.All {
			s.add(k)
		}
		s.Taken, s.Refunded, s.Returned, s.Expired = c.Taken.Load(), c.Refunded.Load(), c.Returned.Load(), c.Expired.Load()
		s.Overdrawn, s.Recovered, s.Reasserted, s.Unknown = c.Overdrawn.Load(), c.Recovered.Load(), c.Reasserted.Load(), c.Unknown.Load()
		s.StoreCalls, s.Syncs, s.Prefetches, s.Probes, s.GiveBacks = c.Calls.Load(), c.Syncs.Load(), c.Prefetches.Load(), c.Probes.Load(), c.GiveBacks.Load()
		s.Waited, s.Failed, s.Fallbacks, s.Shadowed = c.Waited.Load(), c.Failed.Load(), c.Fallbacks.Load(), c.Shadowed.Load()
		s.Admitted = c.Admitted(s.Spent)
	})
	for _, shard := range l.shards.Range {
		if l.hearingOf(shard.(*key.Shard)) != nil {
			s.Unheard++
		}
	}
	return s
}

// add adds the figures of a key that is in memory.
func (s *Stats) add(k *key.Key) {
	f, ok := k.Figures()
	if !ok { // it was forgotten just now
		return
	}
	s.Keys++
	s.Spent += f.Spent
	s.Denied += f.Denied
	s.Held += f.Held + f.Returning
	s.Owed += f.Owed
	if f.Exhausted {
		s.Stranded += f.Held
	}
}

// KeyStats is the state of a key in this process. Its counts begin when the key comes into
// memory.
type KeyStats struct {
	Limit  Limit
	Spent  int64     // tokens that requests used
	Denied int64     // requests refused
	Held   int64     // tokens in memory now
	Reset  time.Time // the end of the window that is open; zero if none is

	// Exhausted says that, in the open window, the store had no tokens left at the last
	// reading, or fewer than a request needs. Requests for more than that and Held are
	// refused from memory; others may pass.
	Exhausted bool
}

// Keys iterates over the keys that are held in memory, in no order. A key that comes or
// goes meanwhile may be missing. Keys takes each key's lock for a moment.
func (l *Limiter) Keys() iter.Seq2[string, KeyStats] {
	return func(yield func(string, KeyStats) bool) {
		for k := range l.env.All {
			f, _ := k.Figures()
			s := KeyStats{Limit: k.Terms().Limit, Spent: f.Spent, Denied: f.Denied}
			if f.Window != 0 {
				s.Held, s.Reset, s.Exhausted = f.Held, f.Window.Time(), f.Exhausted
			}
			if !yield(k.Name(), s) {
				return
			}
		}
	}
}
