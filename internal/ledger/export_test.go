package ledger

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
