package bench

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHistogramBuckets(t *testing.T) {
	for _, v := range []uint64{0, 1, 15, 16, 31, 32, 33, 100, 1_000, 12_345, 1 << 40, math.MaxInt64} {
		low, high := floor(bucket(v)), floor(bucket(v)+1)
		require.LessOrEqual(t, low, v)
		require.Greater(t, high, v)
		require.LessOrEqual(t, float64(high-low), max(1, float64(low)/32), "width at %d", v)
	}
}

func TestHistogramQuantile(t *testing.T) {
	var h, other histogram
	for i := range 1_000 {
		h.add(time.Duration(i))
		other.add(time.Hour)
	}
	require.InEpsilon(t, 500, h.quantile(0.50), 0.01)
	require.InEpsilon(t, 990, h.quantile(0.99), 0.01)
	h.merge(&other)
	require.InEpsilon(t, 1_000, h.quantile(0.50), 0.03)
	require.InEpsilon(t, time.Hour, h.quantile(0.51), 0.03)

	var none histogram
	require.Zero(t, none.quantile(0.5))
}
