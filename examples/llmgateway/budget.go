package main

import (
	"context"
	"errors"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// names and limits say what an API key may use. The limits need names because they count
// the same keys. Dollars are in millionths.
var (
	names  = [3]string{"requests", "tokens", "dollars"}
	limits = [3]reservoir.Limit{reservoir.PerMinute(60), reservoir.PerMinute(20_000), reservoir.PerDay(1_000_000, nil)}
)

// budget is what each API key has used of the limits.
type budget struct {
	limiters [3]*reservoir.Limiter
	all      *reservoir.Group
}

// newBudget returns a budget that counts in store.
func newBudget(store backend.Store, limits [3]reservoir.Limit, opts ...reservoir.Option) (b *budget, err error) {
	b = &budget{}
	opts = append(opts, reservoir.WithFailLocal(0.1)) // while the store is away: a tenth of each limit per process
	for i, limit := range limits {
		if b.limiters[i], err = reservoir.New(store, limit, append(opts, reservoir.WithName(names[i]))...); err != nil {
			return nil, err
		}
	}
	b.all = reservoir.NewGroup(b.limiters[:]...)
	return b, nil
}

// close returns this process' tokens to the store. No stream may be running.
func (b *budget) close(ctx context.Context) error {
	return errors.Join(b.limiters[0].Close(ctx), b.limiters[1].Close(ctx), b.limiters[2].Close(ctx))
}

// price is in millionths of a dollar per token, or dollars per million tokens.
type price struct{ in, out int64 }

func (p price) of(in, out int64) int64 { return in*p.in + out*p.out }

// charge has the tokens that one completion was charged, and those that it has used so far.
type charge struct {
	b        *budget
	key      string
	price    price
	result   reservoir.GroupResult
	in, out  int64 // used, as far as we can count
	reserved int64 // for out
	extra    int64 // charged for out since, because the reservation was used up
}

// reserve charges an estimate for a completion. The result says whether it may begin.
func (b *budget) reserve(ctx context.Context, key string, p price, in, out int64) (*charge, error) {
	r, err := b.all.AllowEach(ctx, []int64{1, in + out, p.of(in, out)}, key, key, key)
	return &charge{b: b, key: key, price: p, result: r, in: in, reserved: out}, err
}

// add counts n more tokens of output and reports whether they are paid for. Tokens beyond
// the reservation are charged now, usually from memory. If no decision is made, the stream
// goes on, and its use is settled at its end. So is use that the model server has reported
// if no output follows, because the answer is complete.
func (c *charge) add(ctx context.Context, n int64) bool {
	c.out += n
	due := c.out - c.reserved - c.extra
	if due <= 0 || n == 0 {
		return true
	}
	r, err := c.b.all.AllowEach(ctx, []int64{0, due, c.price.of(0, due)}, c.key, c.key, c.key)
	if err == nil && r.Allowed {
		c.extra += due
	}
	return r.Allowed || err != nil && !errors.Is(err, reservoir.ErrExceedsLimit)
}

// settle corrects the charge to the use, even if the client has left. It settles the whole
// difference on the reservation, so add need not keep its results. If add has charged too
// much by more than the reservation, the rest stays charged.
func (c *charge) settle(ctx context.Context) error {
	tokens, dollars := c.in+c.out-c.extra, c.price.of(c.in, c.out-c.extra)
	return c.b.all.Settle(context.WithoutCancel(ctx), c.result, []int64{1, max(tokens, 0), max(dollars, 0)})
}
