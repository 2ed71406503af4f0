package reservoir

// Stats is what a Limiter has done since New, over all keys. Counts of tokens
// balance whenever no call is under way:
//
//	Taken + Refunded == Spent + Returned + Expired + Held
type Stats struct {
	Keys int // held in memory now

	Taken    int64 // tokens that the store charged to this process
	Refunded int64 // tokens that Refund took back from requests
	Spent    int64 // tokens that admitted requests used, refunded ones included
	Returned int64 // tokens given back to the store
	Expired  int64 // tokens whose window ended before they were used; a little less again when a window turns out to run on
	Held     int64 // tokens in memory now, to be spent

	StoreCalls int64 // calls to the store, of any kind
	Syncs      int64 // of these, statements of account: fetches and give-backs
	Waited     int64 // requests that waited on the network
	Denied     int64 // requests refused
	Failed     int64 // requests that ended in a StoreError

	Prefetches int64 // fetches ahead of need
	Probes     int64 // looks whether an exhausted key has tokens again
	GiveBacks  int64 // returns of an idle excess; those of Close and eviction not counted
	Stranded   int64 // the part of Held whose key is exhausted in the store

	Fallbacks int64 // requests that the failure policy admitted or refused, the store being away
	Owed      int64 // tokens that it admitted and that the store is still to charge

	Recovered  int64 // tokens whose grant was lost on the way and handed over again
	Reasserted int64 // tokens that the store had forgotten and has charged again
	Unknown    int64 // tokens of direct calls that failed and may have been charged for nothing
}

// Stats returns the counts now. It visits every key, under each key's lock: call
// it as often as metrics are scraped, not per request.
func (l *Limiter) Stats() Stats {
	l.counting.Lock()
	defer l.counting.Unlock()
	var keys int
	var held, lapsed, stranded, owed int64
	denied, spent := l.count.denied.Load(), l.count.spent.Load()
	l.table.each(func(e *entry) {
		s := e.standing()
		spent += s.spent // not derived from the totals, which move on meanwhile
		held += s.held
		lapsed += s.lapsed
		stranded += s.stranded
		denied += s.denied
		owed += s.owed
		keys++
	})
	taken, refunded := l.count.taken.Load(), l.count.refunded.Load()
	returned, expired := l.count.returned.Load(), l.count.expired.Load()+lapsed
	return Stats{
		Keys:       keys,
		Taken:      taken,
		Refunded:   refunded,
		Spent:      spent,
		Returned:   returned,
		Expired:    expired,
		Held:       held,
		StoreCalls: l.count.calls.Load(),
		Syncs:      l.count.syncs.Load(),
		Waited:     l.count.waited.Load(),
		Denied:     denied,
		Failed:     l.count.failed.Load(),
		Prefetches: l.count.prefetches.Load(),
		Probes:     l.count.probes.Load(),
		GiveBacks:  l.count.giveBacks.Load(),
		Stranded:   stranded,
		Fallbacks:  l.count.fallbacks.Load(),
		Owed:       owed,
		Recovered:  l.count.recovered.Load(),
		Reasserted: l.count.reasserted.Load(),
		Unknown:    l.count.unknown.Load(),
	}
}
