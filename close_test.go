package reservoir_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
)

// Close at an unlucky moment. Other tests of Close are in returns_test.go.

// hurried is a context that ends after the first look at it, so its caller gets what memory has
// or nothing, and takes no lock.
type hurried struct {
	context.Context
	looks int
}

func (c *hurried) Err() error {
	if c.looks++; c.looks > 1 {
		return context.Canceled
	}
	return nil
}

// A handle spends from the stock whenever Close is about to take it: the rest goes back all the
// same.
func TestCloseWhileAHandleSpends(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		var k *reservoir.Key // set when Close begins
		var looks, spent int64
		net := far(time.Millisecond)
		shards := sharded{net, func() string { // a statement is being written
			if k != nil {
				looks++
				if r, err := k.Allow(&hurried{Context: bg}); err == nil && r.Allowed {
					spent++
				}
			}
			return ""
		}}
		l := open(t, shards, reservoir.PerHour(1000), reservoir.WithBatch(reservoir.Fixed(500)))
		handle := l.Key("k")
		_, err := handle.AllowN(bg, 7)
		require.NoError(t, err)
		k = handle
		require.NoError(t, l.Close(bg))
		require.Positive(t, looks)
		assert.EqualValues(t, 7+spent, used(t, net, "k"))
		assert.Zero(t, l.Stats().Expired)
	})
}
