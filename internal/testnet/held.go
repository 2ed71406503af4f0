package testnet

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// await returns with the answer, or when the call's time is over. It ignores the context
// of a detached call, which no caller can end before its deadline.
func (p *port) await(ctx context.Context, c *Call) error {
	var timeout <-chan time.Time
	if !c.Until.IsZero() {
		t := time.NewTimer(time.Until(c.Until) + p.skew)
		defer t.Stop()
		timeout = t.C
	}
	var done <-chan struct{}
	if !c.detached {
		done = ctx.Done()
	}
	select {
	case <-c.answer:
		return c.Err
	case <-timeout:
	case <-done:
	}
	p.net.Lock()
	defer p.net.Unlock()
	c.Ghost, c.Err = true, &backend.Error{Op: c.Op, Class: backend.Unknown, Err: context.DeadlineExceeded}
	if c.Executed {
		p.net.drop(c)
	}
	return c.Err
}

// Pick returns the i-th held call, counted round and round, or nil if there are none. It
// orders calls by limiter and key, because goroutines may post several at one instant in any
// order. The lock must be held.
func (n *Network) Pick(i int) *Call {
	if len(n.held) == 0 {
		return nil
	}
	slices.SortStableFunc(n.held, func(a, b *Call) int {
		return cmp.Or(a.Who-b.Who, strings.Compare(a.Key, b.Key), strings.Compare(a.Op, b.Op), a.number-b.number)
	})
	return n.held[i%len(n.held)]
}

// Execute has the store carry out c. The lock must be held.
func (n *Network) Execute(c *Call) (reply any, err error) {
	reply, err = c.run()
	c.Executed = true
	if !c.Ghost {
		c.Reply, c.Err = reply, err
	}
	return reply, err
}

// Answer delivers c's reply, or its error, to its caller. The lock must be held.
func (n *Network) Answer(c *Call) {
	n.drop(c)
	if !c.Ghost {
		c.answer <- struct{}{}
	}
}

// Copy holds c once more; nobody receives the copy's reply. copied says that c stays too.
// The lock must be held.
func (n *Network) Copy(c *Call, copied bool) {
	another := *c
	another.Ghost, another.Copied, another.Executed = true, copied || c.Copied, false
	n.held = append(n.held, &another)
}

// Late reports whether the store would refuse c because it comes too late.
func (c *Call) Late() bool { return !c.Until.IsZero() && time.Now().After(c.Until) }

func (n *Network) drop(c *Call) {
	n.held = slices.DeleteFunc(n.held, func(other *Call) bool { return other == c })
}
