package bench

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets of 3 % or less. Unlike a list of samples
// it allocates nothing while a benchmark counts allocations.
type histogram [64 << subBits]uint32

const subBits = 5 // buckets within a power of two: 1 << subBits

func (h *histogram) add(d time.Duration) { h[bucket(uint64(max(d, 0)))]++ }

func (h *histogram) merge(o *histogram) {
	for i, n := range o {
		h[i] += n
	}
}

// quantile is where the share q of all is reached, if those in a bucket lie evenly
// in it: two medians that differ by less than a bucket can be told apart.
func (h *histogram) quantile(q float64) time.Duration {
	var total, sum float64
	for _, n := range h {
		total += float64(n)
	}
	for i, n := range h {
		if n == 0 {
			continue
		}
		if rest := q*total - sum; rest <= float64(n) {
			low, high := float64(floor(i)), float64(floor(i+1)-1)
			return time.Duration(low + (high-low)*max(rest, 0)/float64(n))
		}
		sum += float64(n)
	}
	return 0
}

// bucket is exact below 1 << subBits; above, it is the number of leading bits
// that are left out, and the subBits bits after the first.
func bucket(v uint64) int {
	cut := bits.Len64(v) - subBits - 1
	if cut <= 0 {
		return int(v)
	}
	return cut<<subBits + int(v>>cut)
}

// floor is the smallest value in bucket i.
func floor(i int) uint64 {
	cut := i>>subBits - 1
	if cut <= 0 {
		return uint64(i)
	}
	return uint64(i-cut<<subBits) << cut
}
