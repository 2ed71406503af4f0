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
	Expired  int64 // tokens whose window ended before they were used
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

	Recovered  int64 // tokens whose grant was lost on the way and handed over again
	Reasserted int64 // tokens that the store had forgotten and has charged again
	Unknown    int64 // tokens of direct calls that failed and may have been charged for nothing
}

// tokens are the balanced counts of one key, or of many. Spent is what is left.
type tokens struct {
	taken, refunded, returned, expired, held int64
}

func (t *tokens) add(o tokens) {
	t.taken += o.taken
	t.refunded += o.refunded
	t.returned += o.returned
	t.expired += o.expired
	t.held += o.held
}

// Stats returns the counts now. It visits every key, under each key's lock: call
// it as often as metrics are scraped, not per request.
func (l *Limiter) Stats() Stats {
	l.gone.Lock()
	sum, denied := l.gone.tokens, l.gone.denied
	l.gone.Unlock()
	keys, stranded := 0, int64(0)
	l.table.each(func(e *entry) {
		t, d := e.counts()
		sum.add(t)
		denied += d
		keys++
		if w := e.win.Load(); w != nil && w.quiet.Load() != 0 {
			stranded += t.held
		}
	})
	return Stats{
		Keys:       keys,
		Taken:      sum.taken,
		Refunded:   sum.refunded,
		Spent:      sum.taken + sum.refunded - sum.returned - sum.expired - sum.held,
		Returned:   sum.returned,
		Expired:    sum.expired,
		Held:       sum.held,
		StoreCalls: l.count.calls.Load(),
		Syncs:      l.count.syncs.Load(),
		Waited:     l.count.waited.Load(),
		Denied:     denied,
		Failed:     l.count.failed.Load(),
		Prefetches: l.count.prefetches.Load(),
		Probes:     l.count.probes.Load(),
		GiveBacks:  l.count.giveBacks.Load(),
		Stranded:   stranded,
		Recovered:  l.count.recovered.Load(),
		Reasserted: l.count.reasserted.Load(),
		Unknown:    l.count.unknown.Load(),
	}
}
