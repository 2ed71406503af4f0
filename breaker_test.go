package reservoir

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// A breaker closes with the first success, and by nothing else.
func TestBreakerCloses(t *testing.T) {
	var b breaker
	silence := &StoreError{Class: backend.Unknown}
	for range failuresToOpen - 1 {
		b.note("", 0, 0, silence)
		require.False(t, b.open.Load())
	}
	b.note("", 0, 0, silence)
	require.True(t, b.open.Load())
	assert.False(t, b.due(0))
	later := int64(longestPause)
	assert.True(t, b.due(later))
	assert.False(t, b.due(later), "one probe at a time")
	b.note("", later, later, silence)
	require.True(t, b.open.Load())
	b.note("", later, later, nil)
	assert.False(t, b.open.Load())
	assert.False(t, b.due(2*later), "there is nothing to find out")
}

// A store that refuses is there: however often it does, the breaker stays closed.
func TestRefusalsNeverOpenTheBreaker(t *testing.T) {
	var b breaker
	for range 10 * failuresToOpen {
		b.note("", 0, 0, &StoreError{Class: backend.Rejected})
		require.False(t, b.open.Load())
	}
}

// Calls that were under way when the breaker opened or closed, and fail after
// that, neither delay a probe, nor pass for its outcome, nor open it again.
func TestStragglersAreNoNews(t *testing.T) {
	var b breaker
	silence := &StoreError{Class: backend.Unknown}
	opened := int64(time.Second)
	for range 50 {
		b.note("", opened-1, opened, silence)
	}
	require.True(t, b.open.Load())
	probed := opened + int64(shortestPause)
	require.True(t, b.due(probed))
	b.note("", opened-1, probed, silence)
	assert.False(t, b.due(probed+int64(longestPause)), "one probe at a time")
	b.note("", probed, probed+2, nil)
	require.False(t, b.open.Load())
	for range 50 {
		b.note("", probed+1, probed+3, silence)
	}
	assert.False(t, b.open.Load())
}
