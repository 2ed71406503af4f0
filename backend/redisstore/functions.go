package redisstore

import (
	"fmt"
	"strings"
	"sync"

	"github.com/go-reservoir/reservoir/lua"
)

// WithFunctions calls the scripts as Redis Functions, by FCALL, and sends none of
// them: for servers where EVAL is not allowed, Redis 7.0 or later. By default
// scripts go by EVALSHA, and by EVAL to a server that does not know them.
//
// An operator loads the library, whose text "reservoir functions" prints and
// lua.Library returns, on the server or on every master of a cluster; replicas
// get it from there. Its name changes with its text: load the new one, update the
// programs, then delete the old one. A call that does not find its function is
// backend.Rejected and names the library.
func WithFunctions() Option {
	return func(s *Store) { s.functions = true }
}

// form returns sc in the form in which the store calls it.
func (s *Store) form(sc *script) *script {
	if s.functions {
		return functionForms()[sc.index]
	}
	return sc
}

// functionForms are the four scripts as functions, by their index.
var functionForms = sync.OnceValue(func() (forms [4]*script) {
	for _, sc := range []*script{syncScript, takeScript, checkScript, refundScript} {
		f := *sc
		f.bySHA, f.sha = strings.Replace(sc.bySHA, "evalsha", "fcall", 1), lua.FunctionName(sc.op)
		f.bySrc, f.source = f.bySHA, f.sha // there is no other way
		if f.writes > 0 {
			f.writes += linesBefore(sc.source)
		}
		forms[sc.index] = &f
	}
	return forms
})

// linesBefore returns how many lines of the library come before those of the script.
// Errors of a function name a line of the whole.
func linesBefore(source string) int {
	before, _, _ := strings.Cut(lua.Library(), source)
	return strings.Count(before, "\n")
}

// noFunction is the answer of a server that lacks the library. It is a redis
// error, so that it counts as an answer: the call was surely not carried out.
type noFunction struct{}

func (noFunction) RedisError() {}

func (noFunction) Error() string {
	return fmt.Sprintf("ERR Function not found: load the library %s (reservoir functions | redis-cli -x FUNCTION LOAD)", lua.LibraryName())
}

// explain replaces an answer by one that says what to do about it, and no more than
// others may read.
func explain(err error) error {
	if err.Error() == "ERR Function not found" {
		return noFunction{}
	}
	return discreet(err)
}
