package lua

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
)

// functions are the scripts as a library of Redis Functions registers them.
var functions = []struct {
	op, source string
	flags      string // a Lua table
}{
	{"sync", Sync, "{}"},
	{"take", Take, "{}"},
	{"check", Check, "{ 'no-writes' }"}, // for FCALL_RO, and for replicas
	{"refund", Refund, "{}"},
}

// version is a hash of all that the library does.
var version = sync.OnceValue(func() string {
	sum := sha256.Sum256([]byte(registered("")))
	return hex.EncodeToString(sum[:4])
})

// LibraryName returns the name of [Library]. It ends with a hash of the library:
// what is loaded under a name is always the same, and old and new versions serve
// side by side while a fleet is updated.
func LibraryName() string { return "reservoir_" + version() }

// FunctionName returns the name of the function that runs the script op ("sync",
// "take", "check" or "refund"). Redis shares one space of names among all
// libraries, so it too ends with the hash.
func FunctionName(op string) string { return functionName(op, version()) }

func functionName(op, version string) string { return "reservoir_" + op + "_" + version }

// Library returns the scripts as one library of Redis Functions (Redis 7.0 or
// later), for servers where nobody may send a script. An operator loads it, on
// every master of a cluster, by
//
//	reservoir functions | redis-cli -x FUNCTION LOAD
//
// Each function takes the keys and arguments of its script, and replies the same.
func Library() string {
	return "#!lua name=" + LibraryName() + "\n" + registered(version())
}

// registered is the library without its first line.
func registered(version string) string {
	var b strings.Builder
	for _, f := range functions {
		fmt.Fprintf(&b, "\nredis.register_function{\nfunction_name = '%s',\nflags = %s,\ncallback = function(KEYS, ARGV)\n%send}\n",
			functionName(f.op, version), f.flags, f.source)
	}
	return b.String()
}
