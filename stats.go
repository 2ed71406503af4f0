package reservoir

import (
	"iter"
	"time"

	"github.com/go-reservoir/reservoir/internal/key"
)

// Stats is for metrics: what a [Limiter] has done since [New], over all keys. A dashboard needs three
// of its fields: Denied, StoreCalls and Failed. The others explain them. Counts of
// tokens balance whenever no call is under way:
//
//	Taken + Refunded == Spent + Returned + Expired + Held
type Stats struct {
	Denied     int64 // requests refused; a Wait that ends in [ErrDeadline] is only in Waited
	StoreCalls int64 // calls to the store, of any kind
	Failed     int64 // requests that ended in a StoreError

	Admitted int64 // requests admitted by any means, except those of Unlimited
	Waited   int64 // requests that waited on the network
	Shadowed int64 // the denied requests that passed because of Limit.Shadow
	Syncs    int64 // the store calls that are statements of account: fetches and give-backs

	Taken    int64 // tokens that the store charged to this process
	Refunded int64 // tokens taken back from requests, by Settle or Refund or because callers gave up
	Spent    int64 // tokens that admitted requests used, including refunded tokens, excluding Debt and what the failure policy admitted
	Returned int64 // tokens given back to the store
	Expired  int64 // tokens whose window ended before they were used, or that came too late for a request without stock
	Held     int64 // tokens in memory now: to be spent, or on their way back

	// Overdrawn is how many tokens were used above the limit: settled above a charge, or
	// admitted by the failure policy. While the store keeps its data, and no Result is
	// refunded twice, the limit is exceeded by no more than this. It does not go down when tokens come back afterwards, and it
	// includes tokens that were not stated to the store before the window ended.
	Overdrawn int64

	Prefetches int64 // fetches ahead of need
	Probes     int64 // fetches that check whether an exhausted key has tokens again
	GiveBacks  int64 // returns of idle tokens, except those of Close and eviction
	Idle       int64 // the part of Held whose key is exhausted in the store, as far as this process knows

	Holds        int64 // holds of keys that were begun here, or that a reply has told of; see [Limiter.Hold]
	Keys         int   // held in memory now
	Unsubscribed int64 // shards, of keys in memory, whose messages do not come here now: see [Hooks].Subscription; or the store sends none

	Fallbacks int64 // requests that the failure policy admitted or refused because the store was away
	Debt      int64 // tokens settled above a charge, which the store must still charge
	Unknown   int64 // tokens of keys past WithMaxKeys, and of settlements by a call, that failed and may have been carried out
}

// Stats returns the present counts. Only Keys, Unsubscribed, Held, Idle and Debt ever go down. Stats
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
		s.Overdrawn, s.Unknown = c.Overdrawn.Load(), c.Unknown.Load()
		s.StoreCalls, s.Syncs, s.Prefetches, s.Probes, s.GiveBacks = c.Calls.Load(), c.Syncs.Load(), c.Prefetches.Load(), c.Probes.Load(), c.GiveBacks.Load()
		s.Holds = c.Holds.Load()
		s.Waited, s.Failed, s.Fallbacks, s.Shadowed = c.Waited.Load(), c.Failed.Load(), c.Fallbacks.Load(), c.Shadowed.Load()
		s.Admitted = c.Admitted(s.Spent)
	})
	for shard := range l.env.Shards {
		if l.hearing.of(shard) != nil {
			s.Unsubscribed++
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
	if !f.Parted {
		s.Keys++
	}
	s.Spent += f.Spent
	s.Denied += f.Denied
	s.Held += f.Held + f.Returning
	s.Debt += f.Debt
	if f.Exhausted {
		s.Idle += f.Held
	}
}

// KeyStats is for looking into a process: the state of one of its keys. Its counts begin when the key comes into
// memory.
type KeyStats struct {
	Limit  Limit
	Spent  int64         // tokens that requests used
	Denied int64         // requests refused
	Held   int64         // tokens in memory now
	Hold   time.Duration // how long the key is held yet; see [Limiter.Hold]
	Reset  time.Time     // the end of the window that is open; zero if none is

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
			if f.Parted {
				continue
			}
			s := KeyStats{Limit: Limit(*k.Limit.Load()), Spent: f.Spent, Denied: f.Denied, Hold: f.Hold}
			if f.Window.End != 0 {
				s.Held, s.Reset, s.Exhausted = f.Held, f.Window.Time(), f.Exhausted
			}
			if !yield(k.Name(), s) {
				return
			}
		}
	}
}
