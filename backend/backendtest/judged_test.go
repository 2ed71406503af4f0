package backendtest

import (
	"context"
	"testing"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// TestModelNotices: the model alone notices each of these bugs, which nothing is compared with.
func TestModelNotices(t *testing.T) {
	replies := func(change func(r *backend.SyncReply)) spoiled {
		return spoiled{sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			reply, err := s.Sync(ctx, r)
			change(&reply)
			return reply, err
		}}
	}
	for name, bug := range map[string]spoiled{
		"a lost grant is not handed over again": replies(func(r *backend.SyncReply) { r.Grant -= r.Recovered }),
		"a grant that is not charged":           replies(func(r *backend.SyncReply) { r.Grant++ }),
		"everybody is let in":                   {take: func(r *backend.TakeReply) { r.Allowed = true }},
		"a settlement counts twice":             {n: func(n *int64) { *n *= 2 }},
		"a settlement does not count":           {n: func(n *int64) { *n = 1 }},
		"a retry that charges again": {sync: func(s backend.Store, ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
			reply, err := s.Sync(ctx, r)
			if reply.Grant > 0 {
				_, _ = s.Take(ctx, backend.TakeRequest{Key: r.Key, Limit: r.Limit, Tokens: 1})
			}
			return reply, err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bug.Store, bug.void, bug.seen = memstore.New(), make(map[backend.Window]bool), make(map[string]int)
			r, done := &recorder{TB: t}, make(chan struct{})
			go func() {
				defer close(done)
				for range 100 {
					playJudged(r, &bug, true)
				}
			}()
			if <-done; r.failure == "" {
				t.Fatal("nobody noticed")
			}
			t.Log("noticed: ", r.failure)
		})
	}
}
