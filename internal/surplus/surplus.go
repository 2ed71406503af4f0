// Package surplus says which idle tokens of a key go back before anybody there needs them: what others want, and what the store
// cannot call, because it does not know of it or no message would come. It is pure.
package surplus

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Surplus is what a key knows of others' wishes. The zero Surplus has heard nothing. It is not safe for concurrent use.
type Surplus struct {
	called   backend.Window // others want idle tokens of this window
	known    int64          // how many tokens the store believes idle here, at most; -1 = it could not call them
	unknown  int64          // since when tokens may lie here that it cannot call; 0 = none do
	refunded bool           // tokens were settled that the store does not know to be idle
}

// of is a window in which others want what is idle. Counters of rolling limits have none, so of them only the generation counts.
func of(w backend.Window, rolls bool) backend.Window {
	if rolls {
		w.End = 1
	}
	return w
}

// Call records that others want the idle tokens of w.
func (s *Surplus) Call(w backend.Window, rolls bool) { s.called = of(w, rolls) }

// Called reports whether others want idle tokens, and were not told what there is.
func (s *Surplus) Called() bool { return s.called.End != 0 }

// Told records that a statement tells them, and reports whether they wanted any.
func (s *Surplus) Told() bool {
	was := s.Called()
	s.called = backend.Window{}
	return was
}

// Believes records how many tokens the store believes idle here; -1 = it could not call them.
func (s *Surplus) Believes(known int64) { s.known = known }

// Known is what Believes has recorded.
func (s *Surplus) Known() int64 { return s.known }

// Refund records that tokens were settled.
func (s *Surplus) Refund() { s.refunded = true }

// Enter forgets what was about the window before.
func (s *Surplus) Enter() { s.known, s.unknown = 0, 0 }

// Hear records that messages come again, or have ceased. It reports whether what was called in vain may be wanted. What lies here
// then goes back soon if the limit runs short.
func (s *Surplus) Hear(hears, short bool, now int64, window time.Duration) bool {
	switch {
	case !hears:
		s.known = -1
	case s.known < 0:
		if s.known = 0; short {
			s.unknown = now - int64(window) // for long
		}
		return true
	}
	return false
}

// lookPart and calmPart divide the window. A key returns a few tokens that the store cannot call at most that often if it runs short, and
// else.
const (
	lookPart = 60
	calmPart = 20
)

// Pause is how often at most a key that no message reaches looks at what it will not use.
func Pause(window time.Duration) time.Duration { return window / lookPart }

// View is a key at one instant.
type View struct {
	Now    int64
	Window backend.Window // of the lease
	Rolls  bool
	Free   int64 // tokens that nobody in line waits for
	Tokens int64 // of the limit
	Length time.Duration
	Lead   time.Duration
	Short  bool // the limit will run out before the window ends
}

// Look returns how many tokens go back now, and when to look again; 0 = no need.
func (s *Surplus) Look(v View) (n, at int64) {
	if s.called == of(v.Window, v.Rolls) {
		s.known = 0
		return v.Free, 0
	}
	s.called = backend.Window{}
	if n = v.Free - max(s.known, 0); n <= 0 {
		s.unknown, s.refunded = 0, false
		return 0, 0
	}
	pause := v.Length / calmPart
	switch {
	case v.Short && (s.refunded && s.known == 0 || n > v.Tokens/100): // others will want them; not at once, because a crowd gives back one by one
		pause = min(v.Length/lookPart, v.Lead)
	case v.Short:
		pause = v.Length / lookPart
	}
	if at = s.Due(v.Now, pause); v.Now < at {
		return 0, at
	}
	return n, 0
}

// Due is when tokens that the store cannot call have been here for as long as pause.
func (s *Surplus) Due(now int64, pause time.Duration) int64 {
	if s.unknown == 0 {
		s.unknown = now
	}
	return s.unknown + int64(pause)
}

// Again begins that time anew.
func (s *Surplus) Again(now int64) { s.unknown = now }
