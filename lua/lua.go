// Package lua holds the scripts that run inside Redis. They are the store: what
// they write and in which order is the only truth about a window, and programs
// in other languages may run them as they are.
//
// Layout and rule of the window are those of "How we scaled the GitHub API with
// a sharded, replicated rate limiter in Redis" (GitHub, 2021): a count, its
// stored end, and a TTL one second past the end that only cleans up. That of the end is
// a window's length longer, which tells the length to who comes with another one. Each file's
// header states its keys, its arguments with their units, its reply and the
// invariant it keeps. All need Redis 7.0 or later (PEXPIRETIME), and Sync one that was
// built for 64 bits.
package lua

import _ "embed"

// The scripts, complete and self-contained.
var (
	//go:embed sync.lua
	Sync string
	//go:embed take.lua
	Take string
	//go:embed check.lua
	Check string
	//go:embed refund.lua
	Refund string
	//go:embed reset.lua
	Reset string
)
