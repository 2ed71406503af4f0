package inflight

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

func idle(c *Counter) bool {
	select {
	case <-c.Close():
		return true
	default:
		return false
	}
}

// TestClose: no call begins after it, and it tells when the last has ended.
func TestClose(t *testing.T) {
	var c Counter
	assert.True(t, c.Begin())
	assert.True(t, c.Begin())
	c.End()
	assert.True(t, c.Begin())
	assert.False(t, idle(&c))
	assert.False(t, c.Begin())
	c.Add()
	c.End()
	assert.False(t, idle(&c))
	c.End()
	assert.False(t, idle(&c), "what a call has begun")
	c.End()
	assert.True(t, idle(&c))
	assert.True(t, idle(&c), "again")

	var unused Counter
	assert.True(t, idle(&unused))
	var used Counter
	used.Begin()
	used.End()
	assert.True(t, idle(&used))
}

// TestCallsWhileClosing: whoever began before is waited for.
func TestCallsWhileClosing(t *testing.T) {
	var c Counter
	var running atomic.Int64
	var wg sync.WaitGroup
	started := make(chan struct{}, 4)
	for range 4 {
		wg.Go(func() {
			for i := 0; c.Begin(); i++ {
				running.Add(1)
				running.Add(-1)
				c.End()
				if i == 100 {
					started <- struct{}{}
				}
			}
		})
	}
	<-started
	<-c.Close()
	assert.Zero(t, running.Load())
	wg.Wait()
}
