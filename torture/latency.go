package torture

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir"
)

// answer is how a caller came by its answer, for what that may cost.
type answer int

const (
	fromStock answer = iota // no I/O
	fromStore               // it waited for a call that succeeded
	refused                 // from memory
	byPolicy                // it waited for a call that failed
	byBreaker               // the shard was known to be away
	wakeUp                  // none: how late the machine wakes callers whose timer is due
	answers   = iota
)

func answerOf(r reservoir.Result, err error, away bool) answer {
	switch {
	case err != nil || r.Source == reservoir.Fallback:
		if away {
			return byBreaker
		}
		return byPolicy
	case r.Source == reservoir.Local:
		return fromStock
	case r.Source == reservoir.Denied:
		return refused
	}
	return fromStore
}

// latencies are those of one role while one kind of fault is on.
type latencies [answers]histogram

// histogram has 16 buckets for every doubling: it is exact to 6 %.
type histogram struct {
	Count [(64 - fine) << fine]atomic.Int64
	Most  atomic.Int64 // ns
}

const fine = 4

func (h *histogram) add(d time.Duration) {
	h.Count[bucket(max(d, 0))].Add(1)
	for most := h.Most.Load(); int64(d) > most && !h.Most.CompareAndSwap(most, int64(d)); most = h.Most.Load() {
	}
}

// bucket numbers durations in order: the first 16 one by one, then by their
// leading five bits.
func bucket(d time.Duration) int {
	n := uint64(d)
	if n < 1<<fine {
		return int(n)
	}
	shift := bits.Len64(n) - fine - 1
	return shift<<fine + int(n>>shift)
}

// upper is the end of a bucket.
func upper(i int) time.Duration {
	if i < 2<<fine {
		return time.Duration(i)
	}
	shift := i>>fine - 1
	end := (uint64(i&(1<<fine-1)) + 1<<fine + 1) << shift
	return time.Duration(min(end-1, math.MaxInt64))
}

// spread is a histogram that is not shared, summed over processes and roles.
type spread struct {
	count []int64 // nil while n is 0
	n     int64
	most  time.Duration
}

func (s *spread) add(i int, n int64) {
	if s.count == nil {
		s.count = make([]int64, (64-fine)<<fine)
	}
	s.count[i] += n
	s.n += n
}

func (s *spread) merge(h *histogram) {
	most := time.Duration(h.Most.Load())
	if most == 0 {
		return // as most are: nothing was so fast
	}
	for i := range h.Count {
		if n := h.Count[i].Load(); n > 0 {
			s.add(i, n)
		}
	}
	s.most = max(s.most, most)
}

func (s *spread) join(o *spread) {
	for i, n := range o.count {
		s.add(i, n)
	}
	s.most = max(s.most, o.most)
}

// quantile is the latency that a share of q did not exceed.
func (s *spread) quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(s.n)))
	for i, n := range s.count {
		if rank -= n; rank <= 0 && n > 0 {
			return min(upper(i), s.most)
		}
	}
	return 0
}
