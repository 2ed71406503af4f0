// Package lua has the scripts that run inside Redis. The scripts are the store: they alone
// define what is written for a window and in which order, and programs in other languages
// may run them as they are.
//
// The layout and the rule of the window are those of "How we scaled the GitHub API with a
// sharded, replicated rate limiter in Redis" (GitHub, 2021): a count and the window's
// stored end. The count's TTL lasts a second past the end and only cleans up. The end's TTL
// is a window's length longer, and so shows the length to a call with another one. The
// header of each file states its keys, its arguments with their units, its reply, and its
// invariant. All scripts need Redis 7.0 or later (PEXPIRETIME). Sync needs a server built
// for 64 bits.
package lua

import _ "embed"

//go:generate go test -run=TestJoined -join .

// The scripts, complete and self-contained. Each is the method of backend.Store that has
// its name.
var (
	//go:embed sync.lua
	Sync string
	//go:embed take.lua
	Take string
	//go:embed check.lua
	Check string
	//go:embed settle.lua
	Settle string
	//go:embed reset.lua
	Reset string
	//go:embed rolling.lua
	Rolling string // all methods, of a rolling limit
)

// The scripts of the next protocol, whose rules in Go are internal/ledger. No store uses them yet.
var (
	//go:embed statement.lua
	Statement string // changes a counter
	//go:embed void.lua
	Void string // voids the open window
)
