package lua

import (
	_ "embed"
	"strings"
)

//go:generate go test -run=TestJoined -join .

// The parts of the statement, in the order in which they run. Each piece of knowledge stands in one of them.
var (
	//go:embed statement.head.lua
	statementHead string
	//go:embed parts/start.lua
	start string
	//go:embed parts/window.lua
	window string
	//go:embed parts/account.lua
	account string
	//go:embed parts/grant.lua
	grant string
	//go:embed parts/write.lua
	write string
	//go:embed parts/messages.lua
	messages string
)

// Statement changes a counter: see internal/ledger.
//
//go:embed statement.lua
var Statement string

// join returns a script that is made of parts.
func join(head string, parts ...string) string {
	return head + strings.Join(parts, "\n")
}

// Void is Reset: see internal/ledger.
//
//go:embed void.lua
var Void string
