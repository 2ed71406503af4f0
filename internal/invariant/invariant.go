// Package invariant has assertions that are on under the race detector, with which all
// tests run, and cost nothing otherwise. The idea is from cockroachdb/pebble.
package invariant

import "fmt"

// That panics if ok is false and assertions are on. Guard costly arguments by Enabled.
func That(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("reservoir: broken invariant: " + fmt.Sprintf(format, args...))
	}
}
