package redisstore

import "time"

// budget bounds how many calls to one server are repetitions, so that who repeats
// does not keep a server down that has trouble enough: each call earns a tenth of a
// repetition. It is the retry budget of finagle (RetryBudget) and of "Site
// Reliability Engineering", chapter 21.
//
// What is earned and not used is kept up to a bound, reserve or, if that is more,
// what the calls of one second earn: a busy server may lose a whole pipeline and
// hear it again, and a long quiet time saves nothing up for an outage. An outage
// thus costs at most a tenth of the calls made in it, and that bound once.
//
// Where repetitions get no reply either, more of them will not: see inVain.
type budget struct {
	have float64 // repetitions
	seen int64   // calls that have been paid out

	// When have was last cut to the bound, and the calls up to then.
	cut    time.Time
	before int64
}

const (
	reserve = 3
	earned  = 0.1 // by a call
)

func newBudget(now time.Time) budget { return budget{have: reserve, cut: now} }

// spend takes one repetition, if there is one, at a time when so many calls have
// been made in all.
func (b *budget) spend(now time.Time, calls int64) bool {
	b.have += earned * float64(calls-b.seen)
	b.seen = calls
	if passed := now.Sub(b.cut); passed >= time.Second {
		perSecond := earned * float64(calls-b.before) / passed.Seconds()
		b.have = min(b.have, max(perSecond, reserve))
		b.cut, b.before = now, calls
	}
	if b.have < 1 {
		return false
	}
	b.have--
	return true
}

// inVain is how many repetitions without a reply, and no call between them that had
// one, tell a server that does not answer from a connection that broke: from then on
// nothing is repeated there until it has answered something.
const inVain = 2

// heard notes that the server has answered.
func (g *group) heard() {
	if g.vain.Load() != 0 {
		g.vain.Store(0)
	}
}

// afford charges the group's budget for one repetition, if it has that.
func (g *group) afford(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.budget.spend(now, g.calls)
}
