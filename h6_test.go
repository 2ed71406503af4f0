package reservoir_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir"
)

func TestKeysReentrant(t *testing.T) {
	l := open(t, far(0), reservoir.PerMinute(10))
	for i := range 200 {
		allow(t, l, fmt.Sprint(i), 1)
	}
	done := make(chan bool)
	go func() {
		n := 0
		for key := range l.Keys() {
			if n++; n > 1000 {
				break
			}
			_, _ = l.Allow(bg, key)
			_, _ = l.Allow(bg, fmt.Sprint("new", n))
			_ = l.Reset(bg, key)
			l.Stats()
			for range l.Keys() {
				break
			}
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("deadlock")
	}
}

// A Group is bounded by its caller's context.
