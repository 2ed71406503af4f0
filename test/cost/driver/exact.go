package driver

import "github.com/go-reservoir/reservoir"

// exactly asks for what callers need, by a call for each request that comes alone. Trees of
// older commits get another spelling, see the function adapt of the tests.
func exactly() reservoir.Option { return reservoir.WithFixedBatch(1) }
