package sim

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// book counts what callers were told, by the window that they were told, and what
// reached the store. It does not ask the limiters what they admitted.
type book struct {
	limit  int64
	tokens int64         // a request asks for
	length time.Duration // of the traffic
	index  map[string]int32
	each   func(Window) // is told each window that is over and callers heard of; nil = nobody asks

	mu      sync.Mutex
	keys    []pages
	sum     Outcome // its counts only
	calls   int64   // to the store so far
	grants  int64   // calls that brought tokens
	granted int64   // the tokens
	latency *hdrhistogram.Histogram
	late    *hdrhistogram.Histogram // how long after their times requests were made
	failure error                   // the first
	steady  stranding
	cold    stranding
}

// pages are the two last windows of a key: answers of the one before may come
// late. What is older is closed and counted into the sums.
type pages struct {
	last   [2]Window // the newest first; ID 0 = none
	closed bool      // whether any was, which then was the first
	told   int       // windows that callers were told of
	end    time.Time // of the last of them
}

// stranding adds up windows.
type stranding struct{ windows, tokens int64 }

// Bounds of the record of latencies, in ns.
const (
	slowest = int64(10 * time.Minute)
	digits  = 2
)

func newBook(t Traffic, limit int64, parts int) *book {
	b := &book{limit: limit, tokens: max(t.Tokens, 1), length: t.Length, keys: make([]pages, len(t.Keys)), index: make(map[string]int32, len(t.Keys))}
	for i, k := range t.Keys {
		b.index[k] = int32(i)
	}
	b.latency, b.late = hdrhistogram.New(1, slowest, digits), hdrhistogram.New(1, slowest, digits)
	b.sum.Timeline = make([]Bucket, parts)
	return b
}

// bucket is the part of the timeline that at lies in.
func (b *book) bucket(at time.Duration) *Bucket {
	parts := len(b.sum.Timeline)
	i := int(float64(at) / float64(b.length) * float64(parts))
	return &b.sum.Timeline[min(max(i, 0), parts-1)]
}

// call counts a call to the store that is about to be made.
func (b *book) call(at time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	b.bucket(at).Calls++
}

// hear enters what a process now has, or no longer, by a reply that has come back to
// it. Calls of one key and process do not overlap, so neither do their replies.
func (b *book) hear(w *way, q backend.SyncRequest, r backend.SyncReply) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Grant > 0 {
		b.grants++
		b.granted += r.Grant
	}
	was, now := w.known[q.Key], account{q.Client, r.Window, r.Granted - r.Returned}
	w.known[q.Key] = now
	if was.window != now.window || was.client != now.client {
		was.net = 0
	}
	if p := b.page(b.index[q.Key], r.Window); p != nil {
		p.held += now.net - was.net
	}
}

// answer counts a request's answer and how long it took.
func (b *book) answer(q Request, r reservoir.Result, err error, took, late time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sum.Requests++
	b.bucket(q.At).Requests++
	note(b.latency, took)
	note(b.late, late)
	if err != nil {
		b.sum.Errors++
		if b.failure == nil {
			b.failure = err
		}
		return
	}
	p := b.page(q.Key, backend.Window(r.Reset.UnixMilli()))
	if p == nil {
		p = new(Window) // closed long ago, or none: of no account
	}
	b.open(q.Key, p)
	p.Requests++
	if r.Source.OnNetwork() {
		b.sum.Waited++
		b.bucket(q.At).Waited++
		p.Waited++
	}
	if r.Allowed {
		b.sum.Admitted++
		p.admit(r, b.tokens, q.At+late+took)
		return
	}
	b.sum.Refused++
	if r.Source == reservoir.Denied {
		b.sum.Remembered++
	}
	if p.Refused++; p.Refused == 1 {
		p.Stranded, p.short = max(p.held, 0), q.At+late+took
	}
}

func note(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), 0), slowest)) // within its bounds
}

// open notes that a caller is told of a window, which the process may have known longer.
func (b *book) open(key int32, p *Window) {
	if k := &b.keys[key]; p.ID != 0 && p.Requests == 0 {
		p.Calls = b.calls
		k.told++
		if end := p.ID.Time(); end.After(k.end) {
			k.end = end
		}
	}
}

// over reports whether the first n windows of the first key have ended.
func (b *book) over(n int, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := &b.keys[0]
	b.sum.Sent = b.calls
	return k.told > n || k.told == n && now.After(k.end)
}

// admit counts n tokens that were spent. A direct call charges and spends at once. Of
// callers that one reply serves and refuses, at one instant, any may be heard first.
func (p *Window) admit(r reservoir.Result, n int64, at time.Duration) {
	p.Spent += n
	if r.Source == reservoir.Direct {
		return
	}
	p.held -= n
	if p.Refused > 0 && p.short == at {
		p.Stranded = max(p.Stranded-n, 0)
	}
}

// page finds the window of a key. It is nil for one that is closed already, which
// two windows on takes an answer that is later than any fetch timeout, and for
// none.
func (b *book) page(key int32, w backend.Window) *Window {
	k := &b.keys[key]
	switch {
	case w == 0:
		return nil
	case w > k.last[0].ID:
		b.close(k, k.last[1])
		k.last[1] = k.last[0]
		k.last[0] = Window{ID: w}
	case w < k.last[0].ID && k.last[1].ID == 0:
		k.last[1] = Window{ID: w} // the key's first, whose answers all come late
	}
	for i := range k.last {
		if k.last[i].ID == w {
			return &k.last[i]
		}
	}
	return nil
}

// close counts a window of k that is over.
func (b *book) close(k *pages, p Window) {
	if p.ID == 0 {
		return
	}
	if b.each != nil && p.Requests > 0 {
		b.each(p)
	}
	b.sum.Over += max(p.Spent-b.limit, 0)
	if p.Refused > 0 {
		s := &b.steady
		if !k.closed {
			s = &b.cold
		}
		s.windows++
		s.tokens += p.Stranded
		b.sum.Needless += min(p.Refused, max(b.limit-p.Spent, 0)/b.tokens)
	}
	k.closed = true
}

// end closes all windows and returns what it came to.
func (b *book) end() Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.keys {
		k := &b.keys[i]
		b.close(k, k.last[1])
		b.close(k, k.last[0])
		k.last = [2]Window{}
	}
	o := b.sum
	o.MeanBatch = Ratio(b.granted, b.grants)
	strand := b.steady
	if strand.windows == 0 {
		strand, o.Cold = b.cold, b.cold.windows > 0
	}
	o.StrandedWindows = strand.windows
	o.Stranded = Ratio(strand.tokens, strand.windows*b.limit)
	o.WaitedShare = Ratio(o.Waited, o.Requests)
	o.P50, o.P99 = b.latency.ValueAtQuantile(50), b.latency.ValueAtQuantile(99)
	o.Late = b.late.ValueAtQuantile(99)
	return o
}

// Ratio is a/b, or 0 where there is neither.
func Ratio(a, b int64) float64 { return float64(a) / float64(max(b, 1)) }
