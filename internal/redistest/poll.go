package redistest

import (
	"testing"
	"time"
)

// pollEvery is the pause between two looks at a condition.
const pollEvery = 5 * time.Millisecond

// poll calls check until it returns nil. After limit it fails the test and
// quotes the last reason.
func poll(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("redistest: %s: not within %v: %v", what, limit, err)
		}
	}
}
