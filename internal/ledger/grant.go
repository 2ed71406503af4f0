package ledger

import (
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/demand"
)

// deaf divides the grants to clients that get no messages: what is idle there does not come back.
const deaf = 1.25

// target is how many tokens the client should get: guided self-scheduling (Polychronopoulos and
// Kuck, 1987) over what remains, weighted by the client's share of what is charged. What is idle
// comes back, so a part of it counts as if it had, and a client gets no less than an equal part of
// what remains, nor than a floor, nor than as much again as it has got in a row.
func (s *step) target() int64 {
	c, h, limit := s.Counter, s.head, s.Limit.Tokens
	switch {
	case s.Want == 0:
		return 0
	case s.Exact && s.Need > 0 && h.calls > 0: // others may wait for what came back, too
		return s.Need
	case s.Exact:
		return s.Want
	}
	peers := max(h.clients, h.before, 1) // after a reset the others are still to come
	rest, out := max(limit-c.count, 0), max(c.count, 0)
	floor, least, divisor := min(demand.Floor(limit, peers), 3*rest/max(peers, 6)), 1/float64(peers), 1.0
	if s.Window == h.Window {
		floor = max(floor, min(s.Run-max(out-s.Used, 0), rest-rest/8)) // others got what is charged since
	}
	if s.Deaf { // all of them may leave a hundredth idle, newcomers among them a thousandth
		floor, least, divisor = limit/(1000*peers), 0, deaf
		if s.Pace > 0 {
			floor = limit / (100 * peers)
		}
	}
	free := float64(max(limit-out, 0) + (h.idle-s.was.idle)/6) // some of what is idle elsewhere may come back
	left := free / float64(limit)
	prior := max(float64(max(limit/1000, 1))*left*left, float64(floor), 1) // the weight of a client that has nothing yet
	part := max(float64(s.reply.Mine), float64(s.Pace)*s.passed())
	all := float64(out) + float64(prior*float64(peers)) // rounded as Lua does: no fused multiply-add
	share := max(min((part+prior)/all, 1), least)
	most := max(int64(min(free*share/divisor, backend.MaxTokens)), floor)
	return min(s.Want, max(most, s.Need))
}

// passed is the part of the window that is over.
func (s *step) passed() float64 {
	length := float64(s.length())
	return max(length-float64(s.end*1000-s.now)/1000, 0) / length
}
