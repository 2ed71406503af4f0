package reservoir

import (
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/key"
)

// WindowOf is the window that r was charged to. The windows before and after a Reset may end at one instant, so Reset does not
// tell them apart.
func WindowOf(r Result) backend.Window { return r.window() }

// Leavers is how many keys leave their counters just now.
func Leavers(l *Limiter) (n int) {
	l.env.All(func(k *key.Key) bool {
		if f, _ := k.Figures(); f.Parted {
			n++
		}
		return true
	})
	return n
}
