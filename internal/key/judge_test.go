package key

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/denial"
	"github.com/go-reservoir/reservoir/internal/ledger"
	"github.com/go-reservoir/reservoir/internal/naive"
)

// This file judges what happens in the world: internal/naive knows only of tokens and times.

// counted is a counter of the store, and the judge of what is spent of it.
type counted struct {
	limit   backend.Limit
	counter ledger.Counter
	sent    int64 // statements
	log     naive.Log

	begins map[backend.Window]int64 // when each window opened, us
	heard  map[*Key]int64           // the first generation that a key may still spend, as far as it has heard
	holds  map[*Key]int64           // until when a key may spend nothing, as far as it has said or heard, us; a Reset clears it

	held    int64 // until when the store grants nothing, us
	longest int64 // the latest end of all holds
	kept    int64 // generation since the last Reset

	// Something may stay charged until the window ends, because the key that could give it back is gone: a key has come before an earlier
	// one of its process had left, or a statement has arrived a window after it was given up, or after its key had left and before the
	// store knew of any. Debt of a rolling limit counts from the latest time that the store's clock can show, as far as its process knows.
	stays bool
}

// name is what the judge calls a window.
func (s *counted) name(w backend.Window) naive.Window {
	if s.limit.Rolls {
		return naive.Window{Generation: w.Gen}
	}
	return naive.Window{Begin: s.begins[w], End: w.End * 1000, Generation: w.Gen}
}

// over reports whether what was spent of n at a time counts no more.
func (s *counted) over(n naive.Window, at, now int64) bool {
	if s.log.Rolls > 0 {
		return at+s.log.Rolls+s.log.Linger <= now
	}
	return n.End < now
}

// answered judges an answer.
func (w *world) answered(p *proc, k *Key, in *waiter, n int64, stay bool, v Verdict) {
	var failure *backend.Error
	switch {
	case v.Err != nil && !errors.As(v.Err, &failure) && !(errors.Is(v.Err, ErrExceedsLimit) && n > k.Limit.Load().Tokens):
		w.errors = append(w.errors, v.Err)
	case v.Err == nil && v.Answer.Allowed:
		w.admitted(p, k, in, n, v.Answer)
	case v.Err == nil && stay:
		w.errors = append(w.errors, errors.New("a caller who stays is refused"))
	case v.Err == nil && v.Answer.Source == Local:
		w.refused(k, v.Answer.Of)
	}
}

// refused judges a refusal from memory. Of a rolling limit it may last a little longer, so that processes do not all ask at once.
// One because of a hold may last longer, by a call and the drift of clocks.
func (w *world) refused(k *Key, of backend.Window) {
	if k.use != nil && k.use.denial.State == denial.Held {
		if s := w.of(k.Limit.Load().Counter()); w.us() > s.longest+2*timeout.Microseconds() {
			w.errors = append(w.errors, fmt.Errorf("refused from memory because of a hold, which was over at %d", s.longest))
		}
		return
	}
	if !w.limit.Rolls && of.End*1000 <= w.us() {
		w.errors = append(w.errors, fmt.Errorf("refused from memory because of %v, which is over", of))
	}
}

// admitted judges that n tokens are spent.
func (w *world) admitted(p *proc, k *Key, in *waiter, n int64, a Answer) {
	s := w.of(k.Limit.Load().Counter())
	who, name := slices.Index(w.procs[:], p), s.name(a.Of)
	s.log.Grant(who, name, n)
	if err := s.log.Spend(w.us(), who, name, n); err != nil {
		w.errors = append(w.errors, err)
	}
	if a.Of.Gen < s.heard[k] {
		w.errors = append(w.errors, fmt.Errorf("a token of %v is spent, though its process has heard of a Reset", a.Of))
	}
	if s.holds[k] > w.us() {
		w.errors = append(w.errors, fmt.Errorf("a token is spent, though its process has heard that the key is held until %d", s.holds[k]))
	}
	p.served++
	p.spent = append(p.spent, spent{k, in, a, w.us()})
	if w.left[who].refunds == 0 {
		p.spent = nil
	}
}

// judge judges a state: no token is lost, and no caller stuck.
func (w *world) judge() error {
	waits := false
	for i, p := range w.procs {
		c := &p.env.Counts
		spent, held := c.Spent.Load(), int64(0)
		for _, k := range p.keys {
			_, back := k.Account.Unconfirmed()
			spent, held = spent+k.Spent(), held+k.Held()+back
			if u := k.use; u != nil && u.hold.unsaid > w.now && u.denial.State == denial.Held && u.fetch == nil && u.due == 0 && k.inLine == 0 {
				return fmt.Errorf("process %d does not say that it holds the key", i)
			}
		}
		in, out := c.Taken.Load()+c.Refunded.Load(), spent+c.Returned.Load()+c.Expired.Load()+held
		if in != out {
			return fmt.Errorf("process %d: taken %d, refunded %d; spent %d, returned %d, expired %d, held %d", i, c.Taken.Load(), c.Refunded.Load(), spent, c.Returned.Load(), c.Expired.Load(), held)
		}
		waits = waits || len(p.callers) > 0
	}
	if waits {
		if acts := w.actions(); len(acts) == 0 || !acts[0].kind.itself() {
			return errors.New("a caller waits for nothing")
		}
	}
	return nil
}

// end judges the end of a walk: all keys are forgotten, what is charged was spent, and the next window serves.
func (w *world) end() error {
	w.last = true
	for i, p := range w.procs {
		if len(p.keys) > 0 || !p.env.Empty() || p.shard.keys.Load() != 0 {
			return fmt.Errorf("process %d keeps its key", i)
		}
	}
	for _, s := range w.store {
		if err := s.rest(w.us(), w.procs[0].expired+w.procs[1].expired, w.procs[0].env.Counts.Overdrawn.Load()+w.procs[1].env.Counts.Overdrawn.Load()); err != nil {
			return err
		}
	}
	w.pass(w.now + 8*int64(w.store[1].limit.Window))
	for i, p := range w.procs {
		before := p.served
		w.ask(i, 1, false)
		for steps := 0; len(p.callers) > 0 || steps == 0; steps++ {
			if err := w.collect(); err != nil {
				return err
			}
			acts := w.actions()
			if len(p.callers) > 0 && (len(acts) == 0 || steps > mostSteps) {
				return errors.New("a caller in the next window waits for nothing")
			} else if len(p.callers) > 0 {
				if err := w.do(acts[0]); err != nil {
					return err
				}
			}
		}
		if p.served == before && w.limit.Tokens > 2 {
			return errors.New("the next window refuses")
		}
	}
	for _, p := range w.procs { // the bubble's timers
		for _, k := range p.keys {
			if k.use != nil && k.use.timer != nil {
				k.use.timer.Stop()
			}
		}
	}
	return nil
}

// rest judges a counter when all have told the store all, but so many tokens have expired, and so many were overdrawn.
func (s *counted) rest(now, expired, overdrawn int64) error {
	l := s.limit
	l.Tokens = s.log.Limit
	state := s.counter.Check(l, now)
	if state.Held > 0 {
		return nil
	}
	least, most := s.log.Free(now, s.name(state.Window))
	if state.Remaining < least-expired && !s.stays || state.Remaining > most+overdrawn {
		return fmt.Errorf("at rest %d tokens of %v are free, not %d to %d: %+v", state.Remaining, state.Window, least, most, s.log.List)
	}
	return nil
}
