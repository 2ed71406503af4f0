package key

import (
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// This file has what the failure policy admits while the store is away. It is never charged later, so it counts as Overdrawn at
// once.

// Policy is what callers without stock get while the store is away. The zero Policy is none.
type Policy struct {
	Mode  Mode
	Share float64 // of the limit, that FailLocal admits in a window; 0 to 1
}

// Mode is the kind of a Policy.
type Mode uint8

const (
	NoPolicy   Mode = iota
	FailClosed      // an error
	FailOpen        // every request passes
	FailLocal       // a share of the limit passes
)

// share is what the failure policy has admitted for one key, in a window of its own. With FailLocal it is
// kept until its end, through any number of outages. A nil *share has admitted nothing, and admits nothing.
type share struct {
	window   backend.Window // the policy's own, as its answers have it
	end      int64          // its end by the process' clock
	length   time.Duration  // of it
	admitted int64          // tokens in it
}

// left is how many tokens of a limit the policy still admits in the window.
func (s *share) left(p Policy, limit int64) int64 {
	switch {
	case s == nil:
		return 0
	case p.Mode == FailOpen:
		return math.MaxInt64 - s.admitted
	case p.Mode == FailLocal:
		return int64(p.Share*float64(limit)) - s.admitted
	}
	return 0
}

// neededBy reports whether the key must stay in memory, because tokens that FailLocal has admitted count
// against its share.
func (s *share) neededBy(p Policy, now int64) bool {
	return s != nil && p.Mode == FailLocal && s.admitted > 0 && now <= s.end
}

// takeBack takes back n of the tokens that c was admitted for.
func (s *share) takeBack(c Charge, n int64) {
	if s != nil && s.window == c.Window {
		s.admitted = max(s.admitted-n, 0)
	}
}
