package key

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// This file has how a shard is tried again, by a timer, while it is away, so that the end of an outage is noticed
// without traffic.

// reopener is what a shard has to be tried again.
type reopener struct {
	tries        sync.Mutex  // guards what follows
	timer        *time.Timer // of the next try, while the shard is watched
	failed       string      // the key in the store of the call that failed last, to try with
	noCheckUntil int64       // until when no Check is made while the circuit is open, because one has failed
}

// arm sets the timer for the next try.
func (s *Shard) arm() {
	s.tries.Lock()
	defer s.tries.Unlock()
	after := max(time.Duration(s.NextTry()-s.env.Clock.Now()), time.Millisecond) // more often if another try hung would be a loop
	if s.timer == nil {
		s.timer = time.AfterFunc(after, s.reopen)
	} else {
		s.timer.Reset(after)
	}
}

// reopen looks whether the shard answers again, if that is due. A shard without keys is forgotten.
func (s *Shard) reopen() {
	if !s.env.Calls.Begin() {
		return
	}
	defer s.env.Calls.End()
	defer func() {
		if s.Watched() {
			s.arm()
		}
	}()
	if now := s.env.Clock.Now(); !s.Due(now) {
		return
	} else if s.try(s.env.Life, max(s.env.Timeout, connectTime)) {
		return
	} else {
		s.Breaker.Reset(now)
	}
	if s.env.Parts != nil { // or a key that has just come would stay on a shard that nobody else knows
		s.env.shards.CompareAndDelete(s.Name, s)
	}
	s.Resume()
	s.Report(s.Changed)
}

// try makes a statement for one of the keys of the shard that asks for nothing. It reports false if there is no key.
func (s *Shard) try(ctx context.Context, timeout time.Duration) bool {
	stored, ok := s.SomeKey()
	if ok {
		q := backend.Statement{Key: stored, Limit: backend.Limit{Tokens: 1, Window: time.Minute}}
		_ = s.env.Caller.Call(ctx, &Fetch{Req: q, Cause: next.Reopen, Shard: s, Timeout: timeout})
	}
	return ok
}

// StopTries stops the timers of all shards, and tries each shard that is away for the
// last time, so that Close need not try it with each key.
func (e *Env) StopTries(ctx context.Context) {
	var calls errgroup.Group
	calls.SetLimit(CallsAtOnce)
	for s := range e.Shards {
		s.tries.Lock()
		if s.timer != nil {
			s.timer.Stop()
		}
		s.tries.Unlock()
		if s.Open.Load() && ctx.Err() == nil {
			calls.Go(func() error {
				s.try(ctx, e.Timeout)
				return nil
			})
		}
	}
	_ = calls.Wait()
}

// failedFor keeps the key in the store of a failed call, for the next try.
func (s *Shard) failedFor(stored string) {
	s.tries.Lock()
	defer s.tries.Unlock()
	s.failed = stored
}

// SomeKey returns a key of the shard, in the store: that of the last failed call if it is
// still there, or any other. It looks only at keys that were on the shard when they looked last; those
// that have moved since do not count here any more, so they are looked up once.
func (s *Shard) SomeKey() (stored string, ok bool) {
	s.tries.Lock()
	stored = s.failed
	s.tries.Unlock()
	if stored != "" && s.env.Shard(stored) == s {
		return stored, true
	}
	if s.keys.Load() == 0 {
		return "", false
	}
	for k := range s.env.All {
		k.event(func(int64) effect {
			if k.phase == retired || k.shard != s {
				return unchanged
			}
			k.findShard()
			ok = k.shard == s
			return effect{changed: !ok} // it stands in no line there
		})
		if ok {
			return placement.Named(s.env.Name, k.node.Key), true
		}
	}
	return "", false
}

// MayCheck reports whether to try a Check, which a replica may answer while the primary is
// away.
func (s *Shard) MayCheck() bool {
	s.tries.Lock()
	defer s.tries.Unlock()
	return !s.Open.Load() || s.env.Clock.Now() >= s.noCheckUntil
}

// CheckFailed withholds Checks for a while if the shard is away.
func (s *Shard) CheckFailed() {
	s.tries.Lock()
	defer s.tries.Unlock()
	s.noCheckUntil = s.env.Clock.Now() + int64(LongestPause)
}
