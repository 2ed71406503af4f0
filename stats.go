package reservoir

import (
	"iter"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/keytable"
)

// Stats is what a [Limiter] has done since [New], over all keys. Counts of tokens
// balance whenever no call is under way:
//
//	Taken + Refunded == Spent + Returned + Expired + Held
type Stats struct {
	Keys int // held in memory now

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
	GiveBacks  int64 // returns of a surplus, except those of Close and eviction
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
	Unit  string // what Value counts: "token", "call", "request" or "key"
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
		{"give_backs", "call", "Returns of a surplus to the store.", counter, func(s *Stats) int64 { return s.GiveBacks }},
		{"tokens.stranded", "token", "Tokens held whose key is exhausted in the store.", gauge, func(s *Stats) int64 { return s.Stranded }},

		{"requests.fallback", "request", "Requests that the failure policy admitted or refused because the store was away.", counter, func(s *Stats) int64 { return s.Fallbacks }},
		{"tokens.owed", "token", "Tokens that were used without the store, which it must still charge.", gauge, func(s *Stats) int64 { return s.Owed }},

		{"tokens.recovered", "token", "Tokens whose grant was lost on the way and handed over again.", counter, func(s *Stats) int64 { return s.Recovered }},
		{"tokens.reasserted", "token", "Tokens that the store had forgotten and has charged again.", counter, func(s *Stats) int64 { return s.Reasserted }},
		{"tokens.unknown", "token", "Tokens of direct calls that failed and may have been charged for nothing.", counter, func(s *Stats) int64 { return s.Unknown }},
	}
}

// counts has the counts of the slow path, and of keys that are gone. The hot path counts
// in its key.
type counts struct {
	taken, refunded, returned, expired, overdrawn atomic.Int64 // tokens
	admittedByPolicy                              atomic.Int64 // requests, by the failure policy
	admitted                                      int64        // the last that Stats returned, under Limiter.counting
	spent, denied                                 atomic.Int64 // by keys that are gone
	direct, left                                  atomic.Int64 // tokens used by direct calls, and in windows that their keys have left; Settle takes back no more

	calls, syncs, waited, failed, prefetches, probes, giveBacks, recovered, reasserted, unknown, fallbacks, shadowed atomic.Int64
}

// extraTokens counts spent tokens that are not the first of their request: the other tokens
// of each request, and tokens settled above a charge. Spent less these is the number of
// requests, which the hot path does not count. It has many counters, so that processors
// that admit requests of different keys do not share one.
type extraTokens [16]struct {
	atomic.Int64
	_ [56]byte // of the cache line
}

func (e *extraTokens) add(k *keyState, n int64) {
	if n != 0 {
		e[k.node.Hash%uint32(len(e))].Add(n)
	}
}

func (e *extraTokens) sum() (n int64) {
	for i := range e {
		n += e[i].Load()
	}
	return n
}

// Stats returns the present counts. Only Keys, Held, Stranded and Owed ever go down. Stats
// visits every key, under each key's lock, so call it as often as metrics are scraped, not
// for each request.
func (l *Limiter) Stats() Stats {
	l.counting.Lock()
	defer l.counting.Unlock()
	c := &l.count
	s := Stats{Denied: c.denied.Load(), Spent: c.spent.Load()}
	l.keys.All(func(n *keytable.Node[keyState]) bool {
		s.add(&n.State)
		return true
	})
	s.Taken, s.Refunded, s.Returned, s.Expired = c.taken.Load(), c.refunded.Load(), c.returned.Load(), c.expired.Load()
	s.StoreCalls, s.Syncs, s.Waited, s.Failed = c.calls.Load(), c.syncs.Load(), c.waited.Load(), c.failed.Load()
	s.Prefetches, s.Probes, s.GiveBacks, s.Fallbacks = c.prefetches.Load(), c.probes.Load(), c.giveBacks.Load(), c.fallbacks.Load()
	c.admitted = max(c.admitted, s.Spent-l.extra.sum()+c.admittedByPolicy.Load()) // the counters are not read at the same time
	s.Admitted = c.admitted
	s.Overdrawn, s.Shadowed = c.overdrawn.Load(), c.shadowed.Load()
	s.Recovered, s.Reasserted, s.Unknown = c.recovered.Load(), c.reasserted.Load(), c.unknown.Load()
	return s
}

// add adds the key to s. Its spent tokens are derived, not counted, because the hot path
// writes nothing but the stock. They are summed key by key, each under its lock, because
// totals would move on meanwhile.
func (s *Stats) add(k *keyState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.retired {
		return // the limiter counts it
	}
	w := k.lease.Load()
	if now := k.l.clock.Now(); w != nil && w.Over(now) { // the tokens stay expired
		k.l.count.move(k.account.Expire(k.drainLocked()))
		k.l.count.move(k.account.ExpireDebt())
	}
	k.expireLocked(k.l.clock.Now())
	s.Owed += k.owedLocked()
	held := k.heldLocked()
	s.Keys++
	s.Spent += k.account.Spent(held)
	s.Held += held + k.account.Unconfirmed()
	s.Denied += k.denied.Load()
	if w.Denying() {
		s.Stranded += held
	}
}

// heldLocked is what the key holds, whether it may still be spent or not.
func (k *keyState) heldLocked() int64 { return k.lease.Load().Stock() + k.busy.held() }

// drainLocked takes out all that the key holds.
func (k *keyState) drainLocked() int64 { return k.lease.Load().Drain() + k.busy.unreserve() }

// spentLocked is how many tokens requests have used so far.
func (k *keyState) spentLocked() int64 { return k.account.Spent(k.heldLocked()) }

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
		l.keys.All(func(n *keytable.Node[keyState]) bool { return yield(n.Key, statsOf(&n.State)) })
	}
}

func statsOf(k *keyState) (s KeyStats) {
	k.event(func(now int64) int64 {
		w := k.lease.Load()
		s = KeyStats{Limit: k.limit(), Spent: k.spentLocked(), Denied: k.denied.Load(), Exhausted: w.Alive(now) && w.Denying()}
		if w.Alive(now) {
			s.Held, s.Reset = k.heldLocked(), w.Window.Time()
		}
		return unchanged
	})
	return s
}

// move adds the tokens of m.
func (c *counts) move(m account.Moved) {
	c.taken.Add(m.Taken)
	c.returned.Add(m.Returned)
	c.expired.Add(m.Expired)
	c.overdrawn.Add(m.Overdrawn)
}
