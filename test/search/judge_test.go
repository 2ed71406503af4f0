package search

import (
	"fmt"
	"slices"

	"github.com/go-reservoir/reservoir/internal/naive"
	"github.com/go-reservoir/reservoir/internal/naive/hand"
)

// rest judges the second law in a state in which no client waits for a reply: they state all, and then the store can
// grant what nobody has.
func (c *scope) rest(s *state) error {
	for i := range c.clients {
		if s.clients[i].call != nil {
			return nil
		}
	}
	next := *s
	s = &next
	if c.quiet != nil {
		c.quiet[c.hash(s)] = true
	}
	s.store, s.log.List = s.store.clone(), slices.Clone(s.log.List)
	for i := range c.clients {
		s.clients[i].Hand = cloneHand(s.clients[i].Hand)
	}
	if err := c.settle(s); err != nil {
		return err
	}
	if c.compare(s) == nil {
		return nil
	}
	if err := c.settle(s); err != nil { // once more, on top of what the first statements have brought
		return err
	}
	return c.compare(s)
}

// settle lets all clients state their accounts.
func (c *scope) settle(s *state) error {
	now, resets := c.now(s), int64(len(s.log.Resets))
	for i := range c.clients {
		if p := &s.clients[i]; !p.dead && (p.Window.End != 0 || p.lost > 0) {
			o := call{q: p.Ask(c.limit, "k", names[i], 0, now), sent: now, resets: resets}
			o.r = s.store.sync(c, o.q, now)
			if err := answer(&s.log, o.r); err != nil {
				return err
			}
			if err := p.Apply(c.limit, &s.log, i, hand.Call{Q: o.q, R: o.r, Sent: o.sent, Resets: o.resets}, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare compares what is free with what the model says.
func (c *scope) compare(s *state) error {
	now, resets := c.now(s), int64(len(s.log.Resets))
	free, w := s.store.free(c, now, resets)
	least, most := s.log.Free(now, w)
	if c.limit.Rolls && len(s.log.Losses) > 0 { // what a ring has lost is not charged again: each loss may cost a limit
		return nil
	}
	if len(s.log.Losses) > 0 { // what is held was asserted again, but maybe after the store had granted it to others
		most = c.limit.Tokens + s.granted
		for _, t := range s.log.List {
			if t.State == naive.Held && t.Window == w {
				most -= t.Count
			}
		}
	}
	if free > max(most, 0) {
		return fmt.Errorf("at rest %d tokens of %v are free, and at most %d should be: %+v", free, w, most, s.log.List)
	}
	if free < least && len(s.log.Losses) == 0 {
		return fmt.Errorf("at rest %d tokens of %v are free, and %d should be: %+v", free, w, least, s.log.List)
	}
	return nil
}
