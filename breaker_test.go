package reservoir

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// A breaker closes with the first success, and by nothing else.
func TestBreakerCloses(t *testing.T) {
	var b breaker
	silence := &StoreError{Class: backend.Unknown}
	for range failuresToOpen - 1 {
		b.note("", 0, silence)
		require.False(t, b.open.Load())
	}
	b.note("", 0, silence)
	require.True(t, b.open.Load())
	assert.False(t, b.due(0))
	later := int64(longestPause)
	assert.True(t, b.due(later))
	assert.False(t, b.due(later), "one probe at a time")
	b.note("", later, silence)
	require.True(t, b.open.Load())
	b.note("", later, nil)
	assert.False(t, b.open.Load())
	assert.False(t, b.due(2*later), "there is nothing to find out")
}

// A store that refuses is there: however often it does, the breaker stays closed.
func TestRefusalsNeverOpenTheBreaker(t *testing.T) {
	var b breaker
	for range 10 * failuresToOpen {
		b.note("", 0, &StoreError{Class: backend.Rejected})
		require.False(t, b.open.Load())
	}
}
