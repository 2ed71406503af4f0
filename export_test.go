package reservoir

import "github.com/go-reservoir/reservoir/backend"

// WindowOf is the window that r was charged to. The windows before and after a Reset may end at one instant, so Reset does not
// tell them apart.
func WindowOf(r Result) backend.Window { return r.window() }
