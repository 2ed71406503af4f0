package key

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
)

// situation is the state of a key when a batch, a re-order point or a surplus is sized.
type situation struct {
	*Settings
	limit  backend.Limit
	demand *demand.Demand // nil for a key with one fetch at most
	lease  *lease.Lease
	now    int64
	peers  int64         // processes that share the key, including this one
	small  bool          // the limit is too small for batches
	lead   time.Duration // from ordering a batch to having it
}

func (k *Key) situation(now int64) situation {
	return situation{
		Settings: &k.env.Settings, limit: *k.Limit(), demand: k.use.demand(), lease: k.lease.Load(), now: now,
		peers: int64(max(k.clients, 1)), small: k.small(), lead: k.shard.Lead(),
	}
}

// sparePart divides the limit. All clients together may hold that much for the next large
// request.
const sparePart = 20

// mostAhead is how many batches are held for a request that is larger than a batch. To
// hold more would cost more calls than that request's own.
const mostAhead = 4

// reorder is the stock at which to order the next batch.
func (s *situation) reorder() int64 {
	if !s.ahead() {
		return 0
	}
	at := s.demand.Reorder(s.limit, s.lead, s.limit.Tokens/sparePart/s.peers)
	if most := s.Sizing.Max; most > 0 {
		at = min(at, mostAhead*min(most, s.limit.Tokens))
	}
	if s.guided() && !s.limit.Rolls { // or there would be no room for the batch
		at = min(at, s.most()/2)
	}
	return at
}

// expects reports whether a key that orders by demand will use a token before the window ends, as
// far as is known. If not, a batch that is ordered ahead would mostly cost a call for nothing.
func (s *situation) expects() bool {
	left, _ := s.left()
	return s.demand == nil || !s.guided() || s.limit.Rolls || s.demand.Within(left) >= 1
}

// exact reports whether the store shall grant what is wanted as it is. It tops up what a
// key without demand wants, perhaps beyond the bound of a batch.
func (s *situation) exact() bool {
	most := s.Sizing.Max
	return !s.guided() || s.small || most > 0 && most < s.floor() && !s.demand.Known()
}

// most is how many tokens may lie idle here after a grant: a tenth of the limit, or three usual requests, so that a
// crash costs little. A batch that the user wants is not cut.
func (s *situation) most() int64 { return max(idleMost(s.limit.Tokens, s.demand), s.Sizing.Min) }

// largest is the largest batch that the user and the limit allow.
func (s *situation) largest() int64 {
	if s.Sizing.Max > 0 {
		return min(s.Sizing.Max, s.limit.Tokens)
	}
	return s.limit.Tokens
}

func idleMost(limit int64, d *demand.Demand) int64 { return max(limit/10, int64(3*d.Size())) }

// floor is the smallest batch that is worth a call.
func (s *situation) floor() int64 { return demand.Floor(s.limit.Tokens, s.peers) }

// batch asks the policy for the size of a batch and the reason in a word or two.
func (s *situation) batch(spent, stock, waiting int64) (int64, string) {
	left, open := s.left()
	return s.demand.Batch(s.Sizing, demand.Situation{
		Limit: s.limit, Open: open, Left: left, Lasts: s.lasts(), Spent: spent, Stock: stock, Waiting: waiting, Floor: s.floor(),
	})
}

// left is how long tokens of the window may still be spent, or the length of the next
// window if none is open.
func (s *situation) left() (left time.Duration, open bool) {
	switch {
	case s.limit.Rolls:
		return bucketLength(s.limit.Window) * backend.Ahead, true
	case !s.lease.Alive(s.now):
		return s.limit.Window, false
	}
	return time.Duration(s.lease.Deadline() - s.now), true
}

// lasts is how long the limit will last from now on.
func (s *situation) lasts() time.Duration {
	if s.limit.Rolls {
		return s.limit.Window
	}
	if !s.lease.Alive(s.now) {
		return s.demand.Lasts(s.limit.Window, 0, false)
	}
	return s.demand.Lasts(s.limit.Window, s.limit.Window-time.Duration(s.lease.LatestEnd()-s.now), true)
}

// usage is the part of a key's state that only a key in use needs.
type usage struct {
	demand.Demand
	recall      recall
	timer       *time.Timer
	deniedUntil int64          // see Key.deniedUntil
	due         int64          // when timer fires
	replied     int64          // when the store answered last
	spread      int64          // delay after the reset, so that processes do not all call at once
	backoff     int64          // after a failed fetch, the earliest time of the next
	pause       time.Duration  // of the last back-off; it doubles
	failedAt    int64          // when a fetch that asks for a batch failed last, or its reply was void
	rejected    bool           // the last fetch was rejected
	void        bool           // the last reply was void
	voided      backend.Window // the last one that a Reset has voided, by its message
	carried     backend.Window // the one before, if what was charged in it counts in the present window; see book
	astray      int            // fetches in a row that named another period of the calendar than the store's
	recheck     int64          // when a refused key asks for its limit again
	asked       uint64         // number of the last question for the limit whose answer may be too old
	charge      int64          // when to state debt at the latest; 0 = at once. Of a rolling limit, what comes back, too; 0 = there is none
	hold        int64          // until when a rolling limit orders nothing ahead, because it would get nothing
}

// usage returns the key's usage, making one if there is none.
func (k *Key) usage() *usage {
	if k.use != nil {
		return k.use
	}
	limit := *k.Limit()
	k.use = &usage{Demand: *demand.New(k.account.Balance(), k.firstFetch), spread: spread(limit.Window)}
	k.use.timer = time.AfterFunc(next.Never, func() {
		k.event(func(int64) effect { k.use.due = 0; return changed })
	})
	k.use.timer.Stop() // until it is armed
	k.use.recall.known = k.free()
	if w := k.lease.Load(); w != nil && k.firstFetch != 0 { // it was read once, at k.firstFetch
		k.use.Opened(limit.Window, 0, 0)
		k.use.Forecast(limit, backend.State{Window: w.Window, Left: time.Duration(w.LatestEnd() - k.firstFetch), Remaining: w.Remaining()}, 0)
	}
	return k.use
}

// demand returns the estimate, nil for a key with one fetch at most.
func (u *usage) demand() *demand.Demand {
	if u == nil {
		return nil
	}
	return &u.Demand
}

// observe brings the estimate of the demand for k up to date.
func (u *usage) observe(k *Key, now int64) {
	u.Observe(k.Limit().Window, now, k.spent(), k.largest.take())
}

// opened records that a window of that length has begun.
func (u *usage) opened(length time.Duration, spent, denied int64) {
	u.Opened(length, spent, denied)
	u.spread = spread(length)
	u.recall.known, u.recall.unknown = 0, 0
}

// spread is how long after a reset this process waits before it calls the store.
func spread(window time.Duration) int64 {
	return int64(chance.Part(min(window/spreadPart, spreadMax)))
}

// arm sets the key's timer for at, unless it fires before that anyway.
func (u *usage) arm(now, at int64) {
	if now < u.due && u.due <= at {
		return
	}
	u.due = at
	u.timer.Reset(time.Duration(at - now))
}

// backOff sets the pause after a failed fetch, before a fetch that no caller needs at once.
func (u *usage) backOff(now int64, longest time.Duration) {
	u.pause = min(max(2*u.pause, FirstPause), longest)
	u.backoff = now + int64(u.pause/2+chance.Part(u.pause/2))
}

// lookPart divides the window. A key that runs short returns a few tokens that the store
// cannot call at most that often, and another askTimes a window.
const lookPart = 60

// surplus is how many tokens are worth giving back now: all that a key which leaves, or makes
// direct calls, has; what others want back; and what the store cannot call, because it does
// not know of it or no message would come. at is when to look again; 0 = no need.
func (k *Key) surplus(now int64) (n, at int64) {
	w := k.lease.Load()
	switch {
	case k.idle() || k.env.Direct:
		return w.Stock(), 0
	case !k.keeps(w, now) || k.queue.inFlight(): // its reply may bring what others want
		return 0, 0
	}
	t, r, free := k.Limit(), &k.use.recall, min(k.free(), w.Stock())
	if free > 0 && t.Rolls {
		free = max(free-k.kept(bucketLength(t.Window)/keptPart, 1, now), 0)
	}
	if r.called == w.Window || r.called != (backend.Window{}) && t.Rolls {
		r.known = 0
		return free, 0
	}
	r.called = backend.Window{}
	if !k.env.Caller.Hears(k.env.Stored(k.node.Key)) {
		return k.outlasts(now)
	}
	pause := t.Window / askTimes
	if n = free - max(r.known, 0); n <= 0 {
		r.unknown, r.refunded = 0, false
		return 0, 0
	}
	switch {
	case k.short && (r.refunded && r.known == 0 || n > t.Tokens/100): // others will want them; not at once, because a crowd gives back one by one
		pause = min(t.Window/lookPart, k.shard.Lead())
	case k.short:
		pause = t.Window / lookPart
	}
	if at = r.due(now, pause); now < at {
		return 0, at
	}
	return n, 0
}

// outlasts is surplus for a key that cannot be called: tokens that will not be used while the
// limit lasts, if they are half of the stock, because less is not worth a call.
func (k *Key) outlasts(now int64) (n, at int64) {
	s, r, stock := k.situation(now), &k.use.recall, k.lease.Load().Stock()
	if !k.short || stock <= s.limit.Tokens/50/s.peers {
		return 0, 0
	}
	pause := s.limit.Window / lookPart
	if at = r.due(now, pause); now < at { // the rate is not known yet
		return 0, at
	}
	r.unknown = now
	left, _ := s.left()
	soon := s.demand.Soon(s.limit.Window, max(min(s.lasts(), left), pause), now, k.spent())
	if n = min(k.free()-int64(soon), stock); n <= stock/2 {
		n = 0
	}
	return n, now + int64(pause)
}

// due is when tokens that the store cannot call have been here for as long as pause.
func (r *recall) due(now int64, pause time.Duration) int64 {
	if r.unknown == 0 {
		r.unknown = now
	}
	return r.unknown + int64(pause)
}

// most is the size of the largest request since the last take.
type most struct{ atomic.Uint32 }

func (m *most) record(n int64) {
	if size := uint32(min(n, math.MaxUint32)); size > m.Load() {
		m.Store(size)
	}
}

func (m *most) take() int64 { return int64(m.Swap(0)) }
