package tune

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
	length time.Duration // of the traffic
	index  map[string]int32

	mu      sync.Mutex
	keys    []pages
	sum     Outcome // its counts only
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
	last   [2]page // the newest first
	closed bool    // whether any was, which then was the first
}

// page is what happened in one window of a key.
type page struct {
	window  backend.Window // 0 = no page
	spent   int64
	refused int64
	held    int64 // in all processes: charged by batches and not spent
	strand  int64 // held at the first refusal
}

// stranding adds up windows.
type stranding struct{ windows, tokens int64 }

// Bounds of the record of latencies, in ns.
const (
	slowest = int64(10 * time.Minute)
	digits  = 2
)

// buckets is how many parts the traffic's time is shown in.
const buckets = 50

func newBook(t Traffic, limit int64) *book {
	b := &book{limit: limit, length: t.Length, keys: make([]pages, len(t.Keys)), index: make(map[string]int32, len(t.Keys))}
	for i, k := range t.Keys {
		b.index[k] = int32(i)
	}
	b.latency, b.late = hdrhistogram.New(1, slowest, digits), hdrhistogram.New(1, slowest, digits)
	b.sum.Timeline = make([]Bucket, buckets)
	return b
}

// bucket is the part of the timeline that at lies in.
func (b *book) bucket(at time.Duration) *Bucket {
	i := int(float64(at) / float64(b.length) * buckets)
	return &b.sum.Timeline[min(max(i, 0), buckets-1)]
}

// call counts a call to the store that is about to be made.
func (b *book) call(at time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bucket(at).Calls++
}

// grant counts the tokens that a call has brought.
func (b *book) grant(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 {
		b.grants++
		b.granted += n
	}
}

// charge counts tokens of batches that a process now has, or no longer.
func (b *book) charge(key string, w backend.Window, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.page(b.index[key], w); p != nil {
		p.held += n
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
	if r.Source.OnNetwork() {
		b.sum.Waited++
	}
	p := b.page(q.Key, backend.Window(r.Reset.UnixMilli()))
	if r.Allowed {
		b.sum.Admitted++
		p.admit(r)
		return
	}
	b.sum.Refused++
	if r.Source == reservoir.Denied {
		b.sum.Remembered++
	}
	p.refuse()
}

func note(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), 0), slowest)) // within its bounds
}

// admit counts a token that was spent. A direct call charges and spends at once.
func (p *page) admit(r reservoir.Result) {
	if p == nil {
		return
	}
	p.spent++
	if r.Source != reservoir.Direct {
		p.held--
	}
}

func (p *page) refuse() {
	if p == nil {
		return
	}
	if p.refused++; p.refused == 1 {
		p.strand = max(p.held, 0)
	}
}

// page finds the window of a key. It is nil for one that is closed already, which
// two windows on takes an answer that is later than any fetch timeout, and for
// none.
func (b *book) page(key int32, w backend.Window) *page {
	k := &b.keys[key]
	switch {
	case w == 0:
		return nil
	case w > k.last[0].window:
		b.close(k, k.last[1])
		k.last[1] = k.last[0]
		k.last[0] = page{window: w}
	case w < k.last[0].window && k.last[1].window == 0:
		k.last[1] = page{window: w} // the key's first, whose answers all come late
	}
	for i := range k.last {
		if k.last[i].window == w {
			return &k.last[i]
		}
	}
	return nil
}

// close counts a window of k that is over.
func (b *book) close(k *pages, p page) {
	if p.window == 0 {
		return
	}
	b.sum.Over += max(p.spent-b.limit, 0)
	if p.refused > 0 {
		s := &b.steady
		if !k.closed {
			s = &b.cold
		}
		s.windows++
		s.tokens += p.strand
		b.sum.Needless += min(p.refused, max(b.limit-p.spent, 0))
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
		k.last = [2]page{}
	}
	o := b.sum
	o.MeanBatch = ratio(b.granted, b.grants)
	strand := b.steady
	if strand.windows == 0 {
		strand, o.Cold = b.cold, b.cold.windows > 0
	}
	o.StrandedWindows = strand.windows
	o.Stranded = ratio(strand.tokens, strand.windows*b.limit)
	o.P50, o.P99 = b.latency.ValueAtQuantile(50), b.latency.ValueAtQuantile(99)
	o.Late = b.late.ValueAtQuantile(99)
	return o
}

func ratio(a, b int64) float64 { return float64(a) / float64(max(b, 1)) }
