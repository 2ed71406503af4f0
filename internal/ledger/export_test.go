package ledger

import "github.com/go-reservoir/reservoir/backend"

// What controls break: see TestControls.

func (c *Counter) ForgetGeneration() {
	if c.head != nil {
		c.head.Gen = 0
	}
}

func (c *Counter) ForgetSum() {
	if c.head != nil {
		c.head.sum = 0
	}
}

func (c *Counter) ForgetClaims() {
	if c.head != nil {
		c.head.claimable = 0
	}
}

func (c *Counter) ForgetClock() {
	if c.ring != nil {
		c.ring.last, c.ring.off = 0, 0
	}
}

// ForgetOldest leaves out the bucket that counts longest.
func (c *Counter) ForgetOldest(now int64) {
	if c.ring == nil {
		return
	}
	if c.turn(now); len(c.ring.counts) > 0 {
		c.count -= c.ring.counts[0]
		c.ring.counts[0] = 0
	}
}

// Time is the counter's at now.
func (c *Counter) Time(now int64) int64 { return c.time(now) }

// Present is the bucket at now.
func (c *Counter) Present(now int64) int64 {
	if c.ring == nil {
		return 0
	}
	return backend.Bucket(c.time(now), c.ring.length)
}
