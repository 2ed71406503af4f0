package redisstore

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A group is the calls to one server, which share pipelines. Invariants:
//
//   - a call that finds fewer than lanes flights under way leaves at once and by
//     itself: nobody waits for company;
//   - to a distant server those who wait leave after a small part of a trip, with
//     more flights under way: a trip more would be too late for them;
//   - who comes while all lanes are taken rides with all others who did so, in
//     the order in which they came, on the next flight;
//   - a flight that a caller has given up on does not hold a lane any more: a
//     connection that hangs until go-redis' read timeout delays no later call
//     for longer than the patience of one caller;
//   - a flight goes on when its callers have left, so that its connection is made
//     and its script is known for those who come later;
//   - a group without calls has no goroutine.
//
// The obvious design, one flight at a time, serves as many calls a second. But then
// the second of two callers waits for the first one's reply, and a flight that
// hangs keeps everybody.
type group struct {
	client redis.UniversalClient
	clock  *serverClock
	lanes  int
	ack    ack // for what its calls hand out
	// elsewhere takes the calls that this server does not serve any more. It
	// follows redirections, and nil means that there are none.
	elsewhere *group

	teaching chan struct{}    // holds an element while a flight tells the server a script
	patience time.Duration    // with such a flight
	loads    [4]atomic.Uint32 // times that a script was told, by its index
	vain     atomic.Int32     // repetitions that got no reply either, since a call last did

	mu          sync.Mutex // guards what follows; nothing else is locked under it
	flying      int        // flights that hold a lane
	first, last *call      // the queue
	waiting     int
	calls       int64 // that have come, repetitions not counted
	budget      budget
	trip        time.Duration // what an answered flight took of late, or 0
	answers     bool          // the last flight was answered
	pacing      bool          // a flight beyond lanes is to leave soon

	succession // of a cluster's node
}

// lanes is how many pipelines may be under way to one server. From one to eight
// there was no difference in throughput; so few keep pipelines long under load,
// and several let calls leave at once and survive a connection that hangs.
const lanes = 4

// fleet is the most calls of one pipeline, so that the first of them does not
// wait for thousands of others.
const fleet = 256

func newGroup(client redis.UniversalClient, clock *serverClock, lanes int) *group {
	return &group{client: client, clock: clock, lanes: lanes, patience: teachTime, teaching: make(chan struct{}, 1), budget: newBudget(time.Now())}
}

// alone is lanes without a bound: every call leaves by itself, maybe to a server
// of its own.
const alone = math.MaxInt

// submit sends c now or queues it. It returns at once, but with the answer if c
// is inline and leaves now.
func (g *group) submit(c *call) {
	f := g.enter(c)
	switch {
	case f == nil:
	case f.own:
		g.escort(f)
	default:
		go f.fly()
	}
}

// launch is submit from a flight, which has others to answer.
func (g *group) launch(c *call) {
	if f := g.enter(c); f != nil {
		f.own = false
		go f.fly()
	}
}

// enter returns a flight with c on board if there is a lane for it, or queues c.
func (g *group) enter(c *call) *flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.attempt == 0 {
		g.calls++
	}
	if g.flying >= g.lanes {
		g.push(c)
		g.pace()
		return nil
	}
	g.flying++
	f := &flight{group: g, lane: true, own: c.inline && (!c.ends || g.near())}
	f.board(c)
	return f
}

// escort flies f for its one caller, who goes on with the answer; others that
// have come meanwhile get a goroutine. A hook of go-redis may panic, and the
// caller may survive that: the lane is freed in any case.
func (g *group) escort(f *flight) {
	back := false
	defer func() {
		if !back {
			g.overdue(f)
		}
	}()
	f.leg()
	f.own, back = false, true
	if g.again(f) {
		go f.fly()
	}
}

// teach waits until no other flight tells the server a script, so that one does
// it for all, and returns what to call when that is done. It waits no longer than
// a load should take: a connection that hangs must not keep the others.
func (g *group) teach() (done func()) {
	if g.lanes == alone {
		return func() {}
	}
	t := time.NewTimer(g.patience)
	defer t.Stop()
	select {
	case g.teaching <- struct{}{}:
		return func() { <-g.teaching }
	case <-t.C:
		return func() {}
	}
}

// teachTime is far more than a load takes, and less than callers wait.
const teachTime = 50 * time.Millisecond

// taught reports whether the script that the server did not know when c was sent
// has been told to it since.
func (g *group) taught(c *call) bool {
	return g.lanes != alone && g.loads[c.script.index].Load() != c.loads
}

// leave takes the call out whose caller has gone, and returns why it has no
// answer: one that is still queued was surely not sent.
func (g *group) leave(c *call) error {
	g.mu.Lock()
	if c.queued {
		g.remove(c)
		g.mu.Unlock()
		return unsent{c.ctx.Err()}
	}
	g.mu.Unlock()
	if f := c.flight.Load(); f != nil {
		f.group.overdue(f)
		return c.ctx.Err()
	}
	return unsent{c.ctx.Err()}
}

// overdue gives the flight's lane to those who wait.
func (g *group) overdue(f *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !f.lane {
		return
	}
	f.lane = false
	relief := &flight{group: g, lane: true}
	if g.fill(relief) {
		go relief.fly()
		return
	}
	g.flying--
}

// nearby is a flight's time to a server that is near: a new connection there costs
// a few of these, which is still less than callers wait.
const nearby = 20 * time.Millisecond

// near reports whether the server answers soon. A caller's own goroutine does no
// more than the caller's own time allows, and so flies to such servers alone. The
// caller holds g.mu.
func (g *group) near() bool { return g.answers && g.trip < nearby }

// measure notes how long the flight took, less what the few take that open a
// connection. The caller holds g.mu.
func (g *group) measure(f *flight) {
	g.answers = f.answered
	switch {
	case !f.answered:
	case f.took < g.trip || g.trip == 0:
		g.trip = f.took
	default:
		g.trip += (f.took - g.trip) / 8
	}
}

// farLanes is how many pipelines may be under way to a distant server. Who had to
// wait there for one of a few to come back would be too late.
const farLanes = 20

// pace lets those who wait leave a part of a trip from now, beyond lanes, if the
// server is distant. The caller holds g.mu.
func (g *group) pace() {
	if g.trip > nearby && g.flying < farLanes && !g.pacing {
		g.pacing = true
		time.AfterFunc(g.trip/(farLanes-lanes), g.relieve)
	}
}

// relieve flies those who wait, and others until it finds none.
func (g *group) relieve() {
	g.mu.Lock()
	f := &flight{group: g, lane: true}
	g.pacing = false
	full := g.fill(f)
	if full {
		g.flying++
	}
	if g.first != nil {
		g.pace()
	}
	g.mu.Unlock()
	if full {
		f.fly()
	}
}

// again fills a flight that has come back with those who wait, and reports
// whether it is to leave. If not, its lane is free.
func (g *group) again(f *flight) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.measure(f)
	if !f.lane {
		return false // it has been given away
	}
	if g.fill(f) {
		return true
	}
	f.lane = false
	g.flying--
	return false
}

// fill moves calls from the queue to f. The caller holds g.mu.
func (g *group) fill(f *flight) bool {
	f.calls = slices.Grow(f.calls[:0], min(g.waiting, fleet))
	for g.first != nil && len(f.calls) < fleet {
		c := g.first
		g.remove(c)
		if c.state.Load() == waiting {
			f.board(c)
		}
	}
	return len(f.calls) > 0
}

// idle reports whether no call is on its way.
func (g *group) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.flying == 0 && g.first == nil
}

// push appends c to the queue. The caller holds g.mu.
func (g *group) push(c *call) {
	c.queued, c.prev, c.next = true, g.last, nil
	if g.last == nil {
		g.first = c
	} else {
		g.last.next = c
	}
	g.last = c
	g.waiting++
}

// remove takes c out of the queue. The caller holds g.mu.
func (g *group) remove(c *call) {
	if c.prev == nil {
		g.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		g.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.queued, c.prev, c.next = false, nil, nil
	g.waiting--
}
