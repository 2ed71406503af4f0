// Package counter is the rules of one key, for stores that have them in Go: what
// the scripts in package lua keep in three Redis keys, as one value. Its methods
// are pure steps: state, request and now (Unix us) in, reply out. They follow
// lua/*.lua line by line, and the suite in backendtest holds both to the same
// answers.
package counter

import (
	"slices"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Counter is one key: its window, and the ledger of who was granted what in it.
// The zero Counter is a key that was never charged. A copy is not independent: the
// ledger is shared. Not safe for concurrent use; a reply refers to nothing in it.
type Counter struct {
	stop  int64 // the end of the window, Unix ms; 0 = never opened
	used  int64 // tokens charged in it
	learn int64 // until then, Unix ms, only needed grants are made
	dry   int64 // when the limit was first used up, Unix ms; 0 = it is not
	total int64 // granted to all clients in the window, and returned by them; it never shrinks
	loose int64 // charged because a client knew of it, and re-asserted by nobody yet
	own   map[string]account
}

// guided divides a grant: what remains, times the client's share, by this. It is
// written here, in lua/sync.lua, and in the suite, which notices if they differ.
const guided = 1.25

// account is a client's ledger entry, cumulative in the window.
type account struct{ granted, returned int64 }

// bounds of a window that would open now: its end, and how much later a stored
// end may lie before it counts as a sign that the clock stepped back.
func bounds(now int64, length time.Duration) (last, slack int64) {
	ms := length.Milliseconds()
	return (now+999)/1000 + ms, min(ms/10, 1000)
}

// Opened reports whether c has, or had, a window.
func (c *Counter) Opened() bool { return c.stop != 0 }

// Open reports whether c has a window that is not over.
func (c *Counter) Open(now int64) bool { return c.stop != 0 && c.stop*1000 >= now }

// enter moves c into the window that is open at now. If none is, one opens that
// ends at stop; one that ends impossibly late is brought back to last.
func (c *Counter) enter(now, stop, last, slack int64) {
	switch {
	case !c.Open(now):
		*c = Counter{stop: stop}
	case c.stop > last+slack:
		*c = Counter{stop: last, used: c.used}
	}
}

// Left is the time until the window's end; negative when it is over.
func (c *Counter) Left(now int64) time.Duration {
	return time.Duration(c.stop*1000-now) * time.Microsecond
}

func (c *Counter) state(now, limit int64) backend.State {
	return backend.State{
		Window:    backend.Window(c.stop),
		Left:      c.Left(now),
		Remaining: max(limit-c.used, 0),
	}
}

// Sync is the step of backend.Store.Sync, and so are the following of theirs. The
// request is valid.
func (c *Counter) Sync(r backend.SyncRequest, now int64) backend.SyncReply {
	last, slack := bounds(now, r.Limit.Window)
	spoken := int64(r.Window)
	runs := spoken*1000 >= now && spoken <= last+slack
	next := *c
	stop := last
	if runs {
		stop = spoken
	}
	next.enter(now, stop, last, slack)

	var out backend.SyncReply
	acc, known := next.own[r.Client]
	clients := int64(len(next.own))
	if !known {
		clients++
	}
	granted, returned := r.Granted, r.Returned
	if spoken != next.stop {
		var held int64
		if runs {
			held = granted - returned
		}
		out.Carried = held > 0
		granted, returned = min(held+acc.returned, backend.MaxTokens), acc.returned
		r.Total = 0
	}
	out.Reasserted = max(granted-acc.granted, 0) // grants that the store forgot
	back := max(returned-acc.returned, 0)
	told := max(out.Reasserted-back, 0)
	claimed := min(next.loose, told) // it has heard of them from another
	next.used = max(min(next.used+out.Reasserted, backend.MaxTokens)-claimed-back, 0)
	next.loose -= claimed
	next.total = min(next.total+(told-claimed), backend.MaxTokens)
	acc.granted += out.Reasserted
	acc.returned += back
	out.Recovered = acc.granted - granted
	forgot := r.Total > next.total // grants to others, or what it gave back and others may have been granted since
	if forgot && r.Used > next.used {
		next.loose = min(next.loose+(r.Used-next.used), r.Used)
		next.used = r.Used
	}
	next.total = max(min(next.total+back, backend.MaxTokens), r.Total)

	nowMS := now / 1000
	out.Learning = nowMS < next.learn
	adopted := runs && !c.Open(now)
	if (out.Reasserted > 0 && claimed == 0 || forgot || adopted) && !out.Learning {
		next.learn, out.Learning = nowMS+r.Limit.Window.Milliseconds()/20, true
	}
	rest := max(r.Limit.Tokens-next.used, 0)
	aim := next.target(r, now, acc, clients, out.Recovered, out.Learning)
	take := min(max(aim-out.Recovered, 0), rest, backend.MaxTokens-acc.granted)
	next.used += take
	next.total = min(next.total+take, backend.MaxTokens)
	acc.granted += take

	if next.used == 0 && acc.granted == 0 && !c.Open(now) && !adopted { // a window opens at its first charge
		return backend.SyncReply{State: backend.State{Remaining: r.Limit.Tokens}, Clients: 1}
	}
	if acc.granted > 0 {
		if next.own == nil {
			next.own = make(map[string]account)
		}
		next.own[r.Client] = acc
	}
	if next.dry == 0 && next.used >= r.Limit.Tokens && acc.granted > 0 {
		next.dry = nowMS
	}
	*c = next
	out.Lasted = next.lasted(r.Limit)
	out.State = next.state(now, r.Limit.Tokens)
	out.Grant = take + out.Recovered
	out.Granted, out.Returned, out.Clients, out.Total = acc.granted, acc.returned, clients, next.total
	return out
}

// target is how many tokens the client should get for its wants: guided
// self-scheduling (Polychronopoulos and Kuck, 1987) over what remains, weighted
// by the client's part of what is out, and never below its part of what may be
// stranded. It is sized as if what the client has not heard of were not granted
// yet, so that a statement told twice is answered twice the same.
func (c *Counter) target(r backend.SyncRequest, now int64, acc account, clients, unheard int64, learning bool) int64 {
	n0 := max(r.Limit.Tokens/1000, 1)
	switch {
	case r.Want == 0:
		return 0
	case learning:
		return min(r.Need, n0)
	case r.Strand < 0:
		return r.Want
	}
	peers := max(clients, r.Peers) // at the reset they are still to come
	floor := r.Strand / peers
	out := max(c.used-unheard, 0)
	free := float64(max(r.Limit.Tokens-out, 0))
	left := free / float64(r.Limit.Tokens)
	prior := max(float64(n0)*left*left, float64(floor), 1) // what a client that has nothing yet counts for
	part := max(float64(acc.granted-acc.returned-unheard), float64(r.Pace)*c.passed(r.Limit, now))
	all := float64(out) + float64(prior*float64(peers)) // rounded as Lua does: no fused multiply-add
	share := min((part+prior)/all, 1)
	most := max(int64(min(free*share/guided, backend.MaxTokens)), floor)
	return min(max(r.Want, floor), max(most, r.Need))
}

// passed is the part of the window that is over.
func (c *Counter) passed(l backend.Limit, now int64) float64 {
	length := float64(l.Window.Milliseconds())
	return max(length-float64(c.stop*1000-now)/1000, 0) / length
}

// lasted is how long the limit was enough, from the window's beginning.
func (c *Counter) lasted(l backend.Limit) time.Duration {
	if c.dry == 0 {
		return 0
	}
	return time.Duration(max(c.dry-c.stop+l.Window.Milliseconds(), 1)) * time.Millisecond
}

// Take charges all of r.Tokens, or none.
func (c *Counter) Take(r backend.TakeRequest, now int64) backend.TakeReply {
	last, slack := bounds(now, r.Limit.Window)
	c.enter(now, last, last, slack)
	allowed := c.used+r.Tokens <= r.Limit.Tokens
	if allowed {
		c.used += r.Tokens
	}
	return backend.TakeReply{State: c.state(now, r.Limit.Tokens), Allowed: allowed}
}

// Check changes nothing.
func (c *Counter) Check(l backend.Limit, now int64) backend.State {
	if !c.Open(now) {
		return backend.State{Remaining: l.Tokens}
	}
	return c.state(now, l.Tokens)
}

// Refund returns how many tokens were given back.
func (c *Counter) Refund(r backend.RefundRequest, now int64) int64 {
	if !c.Open(now) || c.stop != int64(r.Window) {
		return 0
	}
	back := min(r.Tokens, c.used)
	c.used -= back
	return back
}

// Contents changes nothing.
func (c *Counter) Contents(now int64) backend.Contents {
	if !c.Open(now) {
		return backend.Contents{}
	}
	out := backend.Contents{Window: backend.Window(c.stop), Used: c.used, Left: c.Left(now)}
	for name, a := range c.own {
		out.Clients = append(out.Clients, backend.Account{Client: name, Granted: a.granted, Returned: a.returned})
	}
	slices.SortFunc(out.Clients, func(a, b backend.Account) int { return strings.Compare(a.Client, b.Client) })
	return out
}
