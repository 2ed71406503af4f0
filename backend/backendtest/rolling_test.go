package backendtest

import (
	"context"
	"testing"

	"github.com/go-reservoir/reservoir/backend"
)

// watched counts what random calls of rolling limits have reached, and may have a deliberate bug.
type watched struct {
	*model
	seen map[string]int
	sync func(q *backend.SyncRequest, r *backend.SyncReply) // after the call, or before it if r is nil
	take func(r *backend.TakeReply)
	n    func(n *int64) // of SettleRolling
}

func (s *watched) note(seen map[string]bool) {
	for what, was := range seen {
		if s.seen[what] += 0; was {
			s.seen[what]++
		}
	}
}

func (s *watched) SyncRolling(ctx context.Context, q backend.SyncRequest) (backend.SyncReply, error) {
	if s.sync != nil {
		s.sync(&q, nil)
	}
	r, err := s.model.SyncRolling(ctx, q)
	s.note(map[string]bool{
		"grant": r.Grant > r.Recovered, "recovered": r.Recovered > 0, "too little": q.Least > r.Grant && r.Remaining > 0, "carried": r.Carried && r.Granted > 0,
		"returned": r.Returned > 0, "debt": r.Debt > 0, "over": r.Over > 0, "leaving": q.Leaving && r.Clients == 0, "three clients": r.Clients == 3,
		"learning": r.Learning, "reasserted": r.Reasserted > 0, "idle elsewhere": r.Idle > 0, "called": r.Called > 0,
		"late": q.Account != 0 && q.Granted > 0 && r.Granted == 0 && r.Account > q.Account, "goes on": r.Account == q.Account && q.Account != 0,
		"no account": r.Account == 0, "frees": r.Frees > 0, "spent in slices": len(q.Spent) > 2 && r.Account == q.Account,
	})
	if s.sync != nil {
		s.sync(&q, &r)
	}
	return r, err
}

func (s *watched) TakeRolling(ctx context.Context, q backend.TakeRequest) (backend.TakeReply, error) {
	r, err := s.model.TakeRolling(ctx, q)
	s.note(map[string]bool{"allowed": r.Allowed, "refused": !r.Allowed, "frees for a take": r.Frees > 0, "idle for a take": r.Idle, "called for a take": r.Called})
	if s.take != nil {
		s.take(&r)
	}
	return r, err
}

func (s *watched) SettleRolling(ctx context.Context, q backend.SettleRequest) (backend.SettleReply, error) {
	if s.n != nil {
		s.n(&q.Tokens)
	}
	r, err := s.model.SettleRolling(ctx, q)
	s.note(map[string]bool{"refund": r.Open && q.Tokens < 0, "overrun": r.Open && q.Tokens > 0, "nothing to settle": !r.Open, "above the limit": r.Over > 0})
	return r, err
}

func (s *watched) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	r, err := s.model.Check(ctx, key, l)
	if l.Rolls {
		s.note(map[string]bool{"all is free": r.Window.End == 0, "some is free": r.Window.End != 0 && r.Remaining > 0})
	}
	return r, err
}

// TestRandomRollingReachesAll: nothing that random calls are for is rare.
func TestRandomRollingReachesAll(t *testing.T) {
	s := &watched{model: newModel(), seen: make(map[string]int)}
	testRandomRolling(t, s)
	for what, n := range s.seen {
		if n == 0 {
			t.Errorf("never seen: %s", what)
		}
	}
}

// bugs of rolling limits, by what is wrong.
var rollingBugs = map[string]watched{
	"a lost grant is not handed over again": {sync: func(_ *backend.SyncRequest, r *backend.SyncReply) {
		if r != nil {
			r.Grant -= r.Recovered
		}
	}},
	"spent too early": {sync: func(q *backend.SyncRequest, r *backend.SyncReply) {
		if r == nil && len(q.Spent) > 1 {
			q.Spent = []backend.Spent{{Slice: q.Spent[0].Slice, Tokens: q.Spent[len(q.Spent)-1].Tokens}}
		}
	}},
	"refunds that are not heard": {sync: func(q *backend.SyncRequest, r *backend.SyncReply) { q.Refunded = 0 }},
	"no second account":          {sync: func(q *backend.SyncRequest, r *backend.SyncReply) { q.Account = 0 }},
	"free too soon":              {take: func(r *backend.TakeReply) { r.Frees -= min(r.Frees, 1000) }},
	"everybody is let in":        {take: func(r *backend.TakeReply) { r.Allowed = true }},
	"a settlement counts twice":  {n: func(n *int64) { *n *= 2 }},
	"a settlement does nothing":  {n: func(n *int64) { *n = 1 }},
}

// TestRandomRollingNotices: random calls notice every one of these bugs.
func TestRandomRollingNotices(t *testing.T) {
	for name, bug := range rollingBugs {
		t.Run(name, func(t *testing.T) {
			bug.model, bug.seen = newModel(), make(map[string]int)
			if failure(t, func(t testing.TB) { testRandomRolling(t, &bug) }) == "" {
				t.Fatal("nobody noticed")
			}
		})
	}
}

// TestModelNoticesOfRolling: the model alone notices each of these bugs, which nothing is compared with.
func TestModelNoticesOfRolling(t *testing.T) {
	for _, name := range []string{"everybody is let in", "a settlement counts twice"} {
		t.Run(name, func(t *testing.T) {
			bug := rollingBugs[name]
			bug.model, bug.seen = newModel(), make(map[string]int)
			noticed := ""
			for i := 0; i < 100 && noticed == ""; i++ {
				noticed = failure(t, func(t testing.TB) { playJudged(t, &bug, true) })
			}
			if noticed == "" {
				t.Fatal("nobody noticed")
			}
			t.Log("noticed: ", noticed)
		})
	}
}
