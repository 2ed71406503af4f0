package backendtest

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// spoiled is a store with a deliberate bug, which counts what random calls have reached.
type spoiled struct {
	backend.Store
	sync  func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error)
	take  func(r *backend.TakeReply)
	n     func(n *int64) // of Settle
	reset func(s backend.Store, ctx context.Context, r backend.ResetRequest) (backend.State, error)
	void  map[backend.Window]bool
	seen  map[string]int
}

func (s *spoiled) note(seen map[string]bool) {
	for what, was := range seen {
		if s.seen[what] += 0; was {
			s.seen[what]++
		}
	}
}

func (s *spoiled) Sync(ctx context.Context, r backend.SyncRequest) (got backend.SyncReply, err error) {
	before, err := s.Store.Check(ctx, r.Key, r.Limit)
	if err != nil {
		return got, err
	}
	if s.sync != nil {
		return s.sync(s.Store, ctx, r)
	}
	got, err = s.Store.Sync(ctx, r)
	opens, grants := before.Window == 0, got.Grant > got.Recovered
	next, first := opens && grants && got.Window == r.Next, opens && grants && r.Window|r.End == 0 && r.Peers|r.Pace == 0
	s.note(map[string]bool{
		"grant": grants, "recovered": got.Recovered > 0, "too little": r.Least > 1 && got.Grant == 0 && got.Remaining > 0,
		"exhausted": got.Remaining == 0, "lasted": got.Lasted > 0, "had come back": got.Lasted > 0 && got.Remaining > 0,
		"returned": got.Returned > 0, "debt": got.Debt > 0, "debt returned": got.Returned > got.Granted, "over": got.Over > 0,
		"leaving": r.Leaving && got.Clients == 1, "three clients": got.Clients == 3, "reasserted": got.Reasserted > 0, "carried": got.Carried,
		"learning": got.Learning, "void": s.void[r.Window] && r.Granted > r.Returned && got.Window != r.Window && !over(ctx, r.Window) && !got.Carried,
		"first contact": first, "first contact takes all": first && got.Lasted > 0, "next": next, "next of another length": next && got.Length > 0,
		"idle elsewhere": got.Idle > 0, "called": got.Called > 0, "called by another": got.Called > 0 && r.Want == 0,
		"conflict": got.Conflict, "conflict with others": got.Conflict && got.Clients > 1, "a calendar too late": r.End > got.Window && got.Window > 0,
		"open length": !got.Conflict && got.Length > 0 && got.Length == r.OpenLength, "adopted with its length": opens && got.Window == r.Window && got.Length > 0,
	})
	return got, err
}

func (s *spoiled) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	got, err := s.Store.Take(ctx, r)
	s.note(map[string]bool{"allowed": got.Allowed, "refused": !got.Allowed, "take in another length": got.Allowed && got.Length > 0, "next by take": got.Allowed && got.Window == r.Next})
	if s.take != nil {
		s.take(&got)
	}
	return got, err
}

func (s *spoiled) Settle(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	if s.n != nil {
		s.n(&r.Tokens)
	}
	got, err := s.Store.Settle(ctx, r)
	s.note(map[string]bool{"refund": got.Open && r.Tokens < 0, "overrun": got.Open && r.Tokens > 0, "nothing to settle": !got.Open, "above the limit": got.Over > 0})
	return got, err
}

func (s *spoiled) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	before, _ := s.Store.Check(ctx, r.Key, r.Limit)
	if s.reset != nil {
		return s.reset(s.Store, ctx, r)
	}
	got, err := s.Store.Reset(ctx, r)
	s.void[before.Window] = s.void[before.Window] || !got.Conflict
	s.note(map[string]bool{
		"nothing to reset": got.Window == 0, "reset": got.Window != 0 && !got.Conflict, "reset by a millisecond": got.Window == before.Window-1,
		"next by reset": r.Next != 0 && (got.Window == before.Window-1+r.Next-r.End || got.Window == r.Next),
	})
	return got, err
}

func over(ctx context.Context, w backend.Window) bool { return w.Time().Before(Now(ctx)) }

// TestRandomCallsReachAll: nothing that random calls are for is rare.
func TestRandomCallsReachAll(t *testing.T) {
	s := &spoiled{Store: memstore.New(), void: make(map[backend.Window]bool), seen: make(map[string]int)}
	testRandom(t, s)
	for what, n := range s.seen {
		if n == 0 {
			t.Errorf("never seen: %s", what)
		}
	}
}

// recorder is a test that may fail without failing the one around it.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.failure += fmt.Sprintf(format, args...)
	runtime.Goexit()
}
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// TestRandomCallsNotice: random calls notice every one of these bugs.
func TestRandomCallsNotice(t *testing.T) {
	replies := func(change func(r *backend.SyncReply)) spoiled {
		return spoiled{sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			reply, err := s.Sync(ctx, r)
			change(&reply)
			return reply, err
		}}
	}
	requests := func(change func(r *backend.SyncRequest)) spoiled {
		return spoiled{sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			change(&r)
			return s.Sync(ctx, r)
		}}
	}
	for name, bug := range map[string]spoiled{
		"a lost grant is not handed over again": replies(func(r *backend.SyncReply) { r.Grant, r.Recovered = r.Grant-r.Recovered, 0 }),
		"an overdraft that is not told":         replies(func(r *backend.SyncReply) { r.Over = 0 }),
		"no learning time":                      replies(func(r *backend.SyncReply) { r.Learning = false }),
		"a give-back that is not heard":         requests(func(r *backend.SyncRequest) { r.Returned = 0 }),
		"needs are not met":                     requests(func(r *backend.SyncRequest) { r.Want, r.Need, r.Least = 0, 0, 0 }),
		"nothing is re-asserted":                requests(func(r *backend.SyncRequest) { r.Window = 0 }),
		"a retry that charges again": {sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			reply, err := s.Sync(ctx, r)
			if reply.Grant > 0 {
				_, _ = s.Take(ctx, backend.TakeRequest{Key: r.Key, Limit: r.Limit, Tokens: 1})
			}
			return reply, err
		}},
		"everybody is let in":       {take: func(r *backend.TakeReply) { r.Allowed = true }},
		"a settlement counts twice": {n: func(n *int64) { *n *= 2 }},
		"a reset that is not made": {reset: func(s backend.Store, ctx context.Context, r backend.ResetRequest) (backend.State, error) {
			return s.Check(ctx, r.Key, r.Limit)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bug.Store, bug.void, bug.seen = memstore.New(), make(map[backend.Window]bool), make(map[string]int)
			r, done := &recorder{TB: t}, make(chan struct{})
			go func() {
				defer close(done)
				testRandom(r, &bug)
			}()
			if <-done; r.failure == "" {
				t.Fatal("nobody noticed")
			}
		})
	}
}
