package httplimit

import (
	"context"
	"fmt"

	"github.com/go-reservoir/reservoir"
)

// limits decides requests: a Limiter or a Group. The middleware uses them only through
// this interface.
type limits interface {
	// fits returns an error unless n is the number of limits.
	fits(n int) error
	// room gives w a key and a cost for each of n limits.
	room(w *response, n int)
	// ask decides, by w's keys and costs.
	ask(w *response) error
	// settle makes the charge equal to w's present costs.
	settle(ctx context.Context, w *response) error
}

type single struct{ *reservoir.Limiter }

func (single) fits(n int) error {
	if n != 1 {
		return fmt.Errorf("httplimit: %d keys for one limiter", n)
	}
	return nil
}

func (single) room(w *response, _ int) { w.keys, w.costs = w.key[:], w.cost[:] }

func (l single) ask(w *response) (err error) {
	w.result, err = l.AllowN(w.request.Context(), w.keys[0], w.costs[0])
	return err
}

func (l single) settle(ctx context.Context, w *response) error {
	return l.Settle(ctx, w.keys[0], w.result, w.costs[0])
}

type group struct{ *reservoir.Group }

func (g group) fits(n int) error {
	if n == 0 || n != g.Len() {
		return fmt.Errorf("%w: %d keys for a group of %d limiters", reservoir.ErrOption, n, g.Len())
	}
	return nil
}

// several has the fields that only a Group's response needs, in one allocation for up to
// four limits.
type several struct {
	reservoir.GroupResult
	keys  [4]string
	costs [4]int64
}

func (group) room(w *response, n int) {
	w.several = new(several)
	w.keys, w.costs = w.several.keys[:min(n, 4)], w.several.costs[:min(n, 4)]
	if n > 4 {
		w.keys, w.costs = make([]string, n), make([]int64, n)
	}
}

func (g group) ask(w *response) error {
	r, err := g.AllowEach(w.request.Context(), w.costs, w.keys...)
	w.several.GroupResult, w.result, w.limit = r, r.Result, r.Limiter
	return err
}

func (g group) settle(ctx context.Context, w *response) error {
	return g.Settle(ctx, w.several.GroupResult, w.costs, w.keys...)
}
