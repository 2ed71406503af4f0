package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// scenario is a fleet, its limit and the demand for it. It names a simulation:
// equal scenarios have equal outcomes.
type scenario struct {
	kind      *kind
	processes int
	limit     reservoir.Limit
	demand    float64 // in limits per window
	windows   int     // how many are simulated, from the first, which is cold
}

// rule is a way to fetch tokens.
type rule struct {
	name, what string
	options    func(l reservoir.Limit) []reservoir.Option
}

var rules = []rule{
	{"direct", "a store call for each request", func(reservoir.Limit) []reservoir.Option {
		return []reservoir.Option{reservoir.WithDirect()}
	}},
	{"fixed", "batches of L/1000, as Rockset set it", func(l reservoir.Limit) []reservoir.Option {
		return batches(reservoir.Fixed(max(l.Tokens/1000, 1)))
	}},
	{"ladder", "Rockset's ladder, from 1 to L/100", func(l reservoir.Limit) []reservoir.Option {
		return batches(reservoir.Ladder(1, max(l.Tokens/100, 1)))
	}},
	{adaptive, "the default", func(reservoir.Limit) []reservoir.Option { return nil }},
}

// adaptive is the rule that the bars are for.
const adaptive = "adaptive"

func batches(s reservoir.Sizing) []reservoir.Option {
	return []reservoir.Option{reservoir.WithBatch(s)}
}

// The streams of random numbers of one seed. The rule has no part in them, so
// that all rules meet the same demand.
const (
	shapeStream uint64 = iota << 32
	arrivalStream
)

// run simulates one fleet. It is for the inside of a synctest bubble, see
// simulate. An error means that the model itself is unsound.
func run(s scenario, r rule, seed uint64) (outcome, error) {
	var calls atomic.Int64
	store := memstore.New()
	shape := s.kind.shape(s.processes, random(seed, shapeStream))
	d := &driver{begin: time.Now(), procs: make([]process, s.processes)}
	for i := range d.procs {
		net := &network{store: store, calls: &calls, begin: d.begin, lane: lane(i)}
		l, err := reservoir.New(net, s.limit, r.options(s.limit)...)
		if err != nil {
			return outcome{}, err
		}
		d.procs[i] = process{limiter: l, lane: lane(i), arrivals: arrivals{
			shape: shape, i: i, n: s.processes,
			demand: s.demand * float64(s.limit.Tokens) / s.limit.Window.Seconds(),
			rand:   random(seed, arrivalStream+uint64(i)),
		}}
	}
	d.tally = &tally{limit: s.limit, windows: s.windows, calls: calls.Load, held: d.held,
		course: course{began: d.begin, step: s.limit.Window / stepsPerWindow}}
	d.run()
	if err := d.close(); err != nil {
		return outcome{}, err
	}
	return d.tally.outcome(), nil
}

func random(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// held is what lies in all limiters. Grants on their way are not in it.
func (d *driver) held() (sum int64) {
	for i := range d.procs {
		sum += d.procs[i].limiter.Stats().Held
	}
	return sum
}

// close closes the limiters and checks that the run was sound: no request failed
// or was late, and each limiter's own counts balance and come to what its
// callers were told.
func (d *driver) close() error {
	var spent, told int64
	for i := range d.procs {
		l := d.procs[i].limiter
		if err := l.Close(context.Background()); err != nil {
			return err
		}
		s := l.Stats()
		if s.Taken+s.Refunded != s.Spent+s.Returned+s.Expired+s.Held {
			return fmt.Errorf("tokens do not balance: %+v", s)
		}
		spent += s.Spent
	}
	for _, w := range d.tally.seen {
		told += w.spent
	}
	switch {
	case d.tally.failed != nil:
		return d.tally.failed
	case d.tally.late > 0:
		return errors.New("a request was held up: one before it waited and did not look at its context")
	case told != spent:
		return fmt.Errorf("the limiters spent %d tokens, their callers had %d", spent, told)
	}
	return nil
}
