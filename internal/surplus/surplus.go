// Package surplus says which idle tokens of a key go back before anybody there needs them: what others want, and what the store
// cannot call, because it does not know of it or no message would come. It is pure.
package surplus

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Surplus is what a key knows of others' wishes. The zero Surplus has heard nothing. It is not safe for concurrent use: the owner's lock guards
// it, and the owner writes its fields, as well as the methods.
type Surplus struct {
	Recalled backend.Window // others want the idle tokens of this window, and no statement has said yet what there is; an End of 0: they do not
	Known    int64          // how many tokens the store believes idle here, at most; -1 = it could not call them
	Since    int64          // since when tokens may lie here that it cannot call; 0 = none do
	Refunded bool           // tokens were settled that the store does not know to be idle
}

// of is a window in which others want what is idle. Counters of rolling limits have none, so of them only the generation counts.
func of(w backend.Window, rolls bool) backend.Window {
	if rolls {
		w.End = 1
	}
	return w
}

// Recall records that others want the idle tokens of w.
func (s *Surplus) Recall(w backend.Window, rolls bool) { s.Recalled = of(w, rolls) }

// Hear records that messages come again, or have ceased. It reports whether what was called in vain may be wanted. What lies here
// then goes back soon if the limit runs short.
func (s *Surplus) Hear(hears, short bool, now int64, window time.Duration) bool {
	switch {
	case !hears:
		s.Known = -1
	case s.Known < 0:
		if s.Known = 0; short {
			s.Since = now - int64(window) // for long
		}
		return true
	}
	return false
}

// LookPart and calmPart divide the window. A key returns a few tokens that the store cannot call at most that often if it runs short, and
// else. If no message comes, it looks that often at what it will not use.
const (
	LookPart = 60
	calmPart = 20
)

// View is a key at one instant.
type View struct {
	Now    int64
	Window backend.Window // of the lease
	Rolls  bool
	Idle   int64 // tokens that nobody in line waits for
	Tokens int64 // of the limit
	Length time.Duration
	Lead   time.Duration
	Short  bool // the limit will run out before the window ends
}

// Look returns how many tokens go back now, and when to look again; 0 = no need.
func (s *Surplus) Look(v View) (n, at int64) {
	if s.Recalled == of(v.Window, v.Rolls) {
		s.Known = 0
		return v.Idle, 0
	}
	s.Recalled = backend.Window{}
	if n = v.Idle - max(s.Known, 0); n <= 0 {
		s.Since, s.Refunded = 0, false
		return 0, 0
	}
	pause := v.Length / calmPart
	switch {
	case v.Short && (s.Refunded && s.Known == 0 || n > v.Tokens/100): // others will want them; not at once, because a crowd gives back one by one
		pause = min(v.Length/LookPart, v.Lead)
	case v.Short:
		pause = v.Length / LookPart
	}
	if at = s.Due(v.Now, pause); v.Now < at {
		return 0, at
	}
	return n, 0
}

// Due is when tokens that the store cannot call have been here for as long as pause.
func (s *Surplus) Due(now int64, pause time.Duration) int64 {
	if s.Since == 0 {
		s.Since = now
	}
	return s.Since + int64(pause)
}
