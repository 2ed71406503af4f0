package backendtest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// recorder is a test that may fail without failing the one around it.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failure += fmt.Sprintf(format, args...)
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// saboteur is a good store with a deliberate bug.
type saboteur struct {
	backend.Store
	sync   func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error)
	take   func(r *backend.TakeReply)
	settle func(n *int64)
	reset  func(s backend.Store, ctx context.Context, r backend.ResetRequest) (backend.State, error)
}

func (s saboteur) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	if s.sync != nil {
		return s.sync(s.Store, ctx, r)
	}
	return s.Store.Sync(ctx, r)
}

func (s saboteur) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	reply, err := s.Store.Take(ctx, r)
	if s.take != nil {
		s.take(&reply)
	}
	return reply, err
}

func (s saboteur) Settle(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	if s.settle != nil {
		s.settle(&r.Tokens)
	}
	return s.Store.Settle(ctx, r)
}

func (s saboteur) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	if s.reset != nil {
		return s.reset(s.Store, ctx, r)
	}
	return s.Store.Reset(ctx, r)
}

// replies makes a bug of a change to replies.
func replies(change func(r *backend.SyncReply)) saboteur {
	return saboteur{sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
		reply, err := s.Sync(ctx, r)
		change(&reply)
		return reply, err
	}}
}

// requests makes a bug of a change to statements.
func requests(change func(r *backend.SyncRequest)) saboteur {
	return saboteur{sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
		change(&r)
		return s.Sync(ctx, r)
	}}
}

// TestSabotage: the walks see every one of these bugs.
func TestSabotage(t *testing.T) {
	twice := 0
	for name, row := range map[string]struct {
		bug   saboteur
		lossy bool // only losses show it
		law   bool // without losses it breaks a law, whatever the counter says
	}{
		"a lost grant is not handed over again": {bug: replies(func(r *backend.SyncReply) { r.Grant, r.Recovered = r.Grant-r.Recovered, 0 })},
		"a grant that is not charged":           {law: true, bug: replies(func(r *backend.SyncReply) { r.Grant, r.Granted = r.Grant+1, r.Granted+1 })},
		"a grant that is lost":                  {law: true, bug: replies(func(r *backend.SyncReply) { r.Grant = max(r.Grant-1, r.Recovered) })},
		"an end that wobbles":                   {law: true, bug: replies(func(r *backend.SyncReply) { twice++; r.Window += backend.Window(twice % 2) })},
		"a stale remainder":                     {law: true, bug: replies(func(r *backend.SyncReply) { r.Remaining += r.Grant })},
		"an overdraft that is not told":         {law: true, bug: replies(func(r *backend.SyncReply) { r.Over = 0 })},
		"another ledger entry each time":        {bug: requests(func(r *backend.SyncRequest) { twice++; r.Client += fmt.Sprint(twice) })},
		"a give-back that is not heard":         {bug: requests(func(r *backend.SyncRequest) { r.Returned = 0 })},
		"greed":                                 {bug: requests(func(r *backend.SyncRequest) { r.Want, r.Strand = r.Limit.Tokens, -1 })},
		"needs are not met":                     {bug: requests(func(r *backend.SyncRequest) { r.Want, r.Need = 0, 0 })},
		"a give-back counts each time it is told": {bug: saboteur{sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			if r.Returned > 0 && r.Window > 0 {
				_, _ = s.Settle(ctx, backend.SettleRequest{Key: r.Key, Window: r.Window, Tokens: -r.Returned, Limit: r.Limit.Tokens})
			}
			return s.Sync(ctx, r)
		}}},
		"a retry that charges again": {law: true, bug: saboteur{sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			if r.Want > 0 {
				_, _ = s.Take(ctx, backend.TakeRequest{Key: r.Key, Limit: r.Limit, Tokens: 1})
			}
			return s.Sync(ctx, r)
		}}},
		"everybody is let in":       {bug: saboteur{take: func(r *backend.TakeReply) { r.Allowed = true }}},
		"nobody is let in":          {law: true, bug: saboteur{take: func(r *backend.TakeReply) { r.Allowed = false }}},
		"a settlement counts twice": {bug: saboteur{settle: func(n *int64) { *n *= 2 }}},
		"a refund of one too few":   {bug: saboteur{settle: func(n *int64) { *n = min(*n+1, -1) }}},
		"an overrun of one too few": {bug: saboteur{settle: func(n *int64) { *n = max(*n-1, 1) }}},
		"a reset that is not made": {bug: saboteur{reset: func(s backend.Store, ctx context.Context, r backend.ResetRequest) (backend.State, error) {
			state, err := s.Check(ctx, r.Key, r.Limit)
			if state.Window > 0 {
				state.Window, state.Left, state.Remaining = state.Window-1, state.Left-time.Millisecond, r.Limit.Tokens
			}
			return state, err
		}}},
		"a reset under the old name": {law: true, bug: saboteur{reset: func(s backend.Store, ctx context.Context, r backend.ResetRequest) (backend.State, error) {
			old, _ := s.Check(ctx, r.Key, r.Limit)
			state, err := s.Reset(ctx, r)
			state.Window = old.Window
			return state, err
		}}},
		"what was held before a reset is carried over": {law: true, bug: saboteur{sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			reply, err := s.Sync(ctx, r)
			if r.Window == 0 || reply.Window == 0 || reply.Window == r.Window || over(ctx, r.Window) || reply.Carried {
				return reply, err
			}
			r.Window, r.Granted, r.Returned, r.Debt, r.Total = reply.Window, reply.Granted+r.Granted-r.Returned, reply.Returned, reply.Debt, 0
			r.Granted = min(r.Granted, backend.MaxTokens)
			return s.Sync(ctx, r)
		}}},
		"nothing is re-asserted": {lossy: true, bug: requests(func(r *backend.SyncRequest) { r.Window = 0 })},
		"no learning time":       {lossy: true, bug: replies(func(r *backend.SyncReply) { r.Learning = false })},
		"no sign of a carry":     {lossy: true, bug: replies(func(r *backend.SyncReply) { r.Carried = false })},
	} {
		t.Run(name, func(t *testing.T) {
			row.bug.Store = memstore.New()
			for _, lossy := range []bool{false, true} {
				if row.lossy && !lossy {
					continue
				}
				failure := failureOf(t, func(t testing.TB) { walkAll(t, row.bug, lossy) })
				if failure == "" || strings.HasPrefix(failure, "the walks never saw") {
					t.Fatalf("nobody noticed (losses: %v): %s", lossy, failure)
				}
			}
			if row.law {
				failure := failureOf(t, func(t testing.TB) { walkAll(t, newAuditor(t, row.bug, false), false) })
				if !strings.HasPrefix(failure, "law: ") {
					t.Fatalf("the auditor did not notice: %s", failure)
				}
			}
		})
	}
}

// failureOf runs f, which may fail, and returns how.
func failureOf(t *testing.T, f func(t testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.failure
}
