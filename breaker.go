package reservoir

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// breaker keeps callers from waiting for a shard that does not answer. It opens
// after so many failures in a row; while it is open no call is made but a probe
// now and then, and callers without stock get the failure policy's answer at
// once. The probe states an account and asks for nothing, in the background: no
// caller waits for it and it charges nobody. That is why it is our own: the
// libraries we know let a real request through to probe.
//
// The pattern is Nygard's ("Release It!", 2007).
type breaker struct {
	open atomic.Bool

	mu       sync.Mutex
	failures int // in a row
	probing  bool
	changed  int64 // clock time at which it last opened or closed
	until    int64 // clock time of the next probe
	pause    time.Duration
	changes  []ShardState // that the hook is to be told, in order
	telling  bool         // somebody does
}

const (
	failuresToOpen = 5
	shortestPause  = 100 * time.Millisecond // before the first probe, or half of it at least; it doubles
	longestPause   = time.Second
)

// errAway is the cause of a StoreError while the breaker is open.
var errAway = &StoreError{Op: "sync", Class: backend.Unavailable, Err: errors.New("the store does not answer, and is not asked for a while")}

// due reports whether it is time for a probe, and gives it to the caller, who
// must make a call whose outcome is noted.
func (b *breaker) due(now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() || b.probing || now < b.until {
		return false
	}
	b.probing = true
	return true
}

// note takes in the outcome of a call to the shard of that name. An error that the
// store itself has answered with counts as life: only silence and being turned away
// do not. Many calls are under way when the breaker opens: the failure of one that
// was sent before the last change is no news, and delays no probe.
func (b *breaker) note(name string, sent, now int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if silent(err) && sent < b.changed {
		return
	}
	b.probing = false
	if !silent(err) {
		b.failures, b.pause = 0, 0
		b.become(ShardState{Shard: name}, now)
		return
	}
	if b.failures++; b.failures < failuresToOpen {
		return
	}
	b.pause = min(max(2*b.pause, shortestPause), longestPause)
	b.until = now + int64(b.pause/2+chance.Part(b.pause/2))
	b.become(ShardState{Shard: name, Away: true, Err: err}, now)
}

// become opens or closes the breaker, if it is not so yet. The caller holds b.mu.
func (b *breaker) become(s ShardState, now int64) {
	if b.open.Swap(s.Away) != s.Away {
		b.changed = now
		b.changes = append(b.changes, s)
	}
}

// tell tells the hook of the changes, one after the other and with no lock held:
// who comes while another tells leaves it to that one.
func (b *breaker) tell(hook func(ShardState)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.telling {
		return
	}
	b.telling = true
	for len(b.changes) > 0 {
		c := b.changes[0]
		b.changes = b.changes[1:]
		if hook != nil {
			b.mu.Unlock()
			hook(c)
			b.mu.Lock()
		}
	}
	b.telling, b.changes = false, nil
}

func silent(err error) bool {
	var failure *StoreError
	return errors.As(err, &failure) && failure.Class != backend.Rejected
}
