// Package lua has the scripts that run inside Redis. The scripts are the store: they alone
// define what is written for a window and in which order, and programs in other languages
// may run them as they are.
//
// A counter of fixed windows is a count and the window's stored end, as in "How we scaled the GitHub API with a
// sharded, replicated rate limiter in Redis" (GitHub, 2021), whose scripts can share it, and a ledger. The header of each file states its keys, its
// arguments with their units, its reply, and its invariant. All scripts need Redis 7.0 or later (EVALSHA_RO, and SET with
// PXAT), built for 64 bits.
package lua

import _ "embed"

//go:generate go test -run=TestJoined -join .

// The scripts, complete and self-contained. Each is the method of backend.Store that has
// its name.
var (
	//go:embed sync.lua
	Sync string // joined from parts
	//go:embed check.lua
	Check string
	//go:embed reset.lua
	Reset string
	//go:embed roll.lua
	Roll string // Sync of a rolling limit, joined from parts
	//go:embed rollcheck.lua
	RollCheck string // joined from parts
	//go:embed rollreset.lua
	RollReset string // joined from parts
)
