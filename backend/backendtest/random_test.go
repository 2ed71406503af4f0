package backendtest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/go-reservoir/reservoir/backend"
)

// spoiled is a store of which a rule is missing. It counts what calls have reached.
type spoiled struct {
	*model
	rolls  bool                                                                         // it is missing for rolling limits; else for others
	before func(s *spoiled, ctx context.Context, q *backend.Statement)                  // changes statements
	after  func(s *spoiled, ctx context.Context, q backend.Statement, r *backend.Reply) // changes replies
	reset  func(s *spoiled, ctx context.Context, key string, l backend.Limit) (backend.Window, error)
	lost   func(s *spoiled, ctx context.Context, key, counter, part string) error
	seq    int64
	seen   map[string]int
}

func (s *spoiled) note(seen map[string]bool) {
	for what, was := range seen {
		if s.seen == nil {
			s.seen = make(map[string]int)
		}
		if s.seen[what] += 0; was {
			s.seen[what]++
		}
	}
}

func (s *spoiled) Sync(ctx context.Context, q backend.Statement) (backend.Reply, error) {
	was, err := s.model.Check(ctx, q.Key, q.Limit)
	if err != nil {
		return backend.Reply{}, err
	}
	if s.before != nil && q.Limit.Rolls == s.rolls {
		s.before(s, ctx, &q)
	}
	r, err := s.model.Sync(ctx, q)
	if err != nil {
		return r, err
	}
	if s.after != nil && q.Limit.Rolls == s.rolls {
		s.after(s, ctx, q, &r)
	}
	if q.Limit.Rolls {
		s.noteRolling(ctx, q, was, r)
		return r, nil
	}
	opens, tells := was.Window.End == 0 && r.Window.End != 0, !r.Void && !r.Astray && q.Client != ""
	other := q.Window.End != 0 && q.Window != r.Window
	s.note(map[string]bool{
		"void": r.Void, "astray": r.Astray, "grant": tells && r.Grant > 0, "refused": tells && q.Need > 0 && r.Grant == 0 && r.Remaining == 0,
		"too little": tells && q.Least > r.Grant && r.Remaining > 0, "opened": tells && opens && q.Window != r.Window,
		"adopted": tells && opens && q.Window == r.Window, "carried": tells && other && !opens && r.Mine > r.Grant, "void window": tells && other && q.Mine > 0 && r.Mine == r.Grant,
		"given back": tells && q.Change < 0 && r.Used < was.Remaining, "used above": tells && q.Change > 0, "over the limit": tells && r.Used > q.Limit.Tokens,
		"leaving": tells && q.Leaving, "three clients": r.Clients > 2, "exhausted": r.Remaining == 0, "lasted": r.Lasted > 0, "had come back": r.Lasted > 0 && r.Remaining > 0,
		"idle elsewhere": r.Idle > 0, "called": r.Called > 0, "called by another": r.Called > 0 && q.Want == 0, "a generation": r.Window.Gen > 0,
		"charged without a client": q.Client == "" && r.Grant > 0, "refused without a client": q.Client == "" && q.Need > 0 && r.Grant == 0 && !r.Astray,
		"overrun without a client": q.Client == "" && q.Change > 0 && q.Window == r.Window && r.Window.End != 0,
		"overrun elsewhere":        q.Client == "" && q.Change > 0 && q.Window != r.Window, "calendar": q.Begin != 0 && r.Grant > 0, "new life": tells && q.Life > 1,
	})
	return r, nil
}

// noteRolling counts what statements of rolling limits have reached.
func (s *spoiled) noteRolling(ctx context.Context, q backend.Statement, was backend.State, r backend.Reply) {
	present, tells := backend.Bucket(r.Now, q.Limit.Window), !r.Void && q.Client != ""
	of := func(sign int64) bool {
		return slices.ContainsFunc(q.Changes, func(d backend.Change) bool {
			return d.Tokens*sign > 0 && d.Bucket >= present-backend.Buckets && d.Bucket <= present+backend.Ahead
		})
	}
	less := r.Used-r.Grant < q.Limit.Tokens-was.Remaining
	s.note(map[string]bool{
		"rolling: void": r.Void, "rolling: refused": tells && q.Need > 0 && r.Grant == 0 && r.Frees > 0, "rolling: too little": tells && q.Least > r.Grant && r.Remaining > 0,
		"rolling: in one bucket": len(r.Grants) == 1, "rolling: spread": len(r.Grants) > 2, "rolling: for later": tells && q.After > present && len(r.Grants) > 0 && r.Grants[0].Bucket > present,
		"rolling: for when the reply comes": tells && q.Within > 0 && len(r.Grants) > 0 && r.Grants[0].Bucket > present && q.After < present,
		"rolling: given back":               tells && less && of(-1) && q.Known+1 == q.Seq, "rolling: used": tells && of(1), "rolling: undone": tells && less && len(q.Changes) == 0 && q.Known+1 < q.Seq,
		"rolling: of another generation": tells && q.Window.Gen < r.Window.Gen && len(q.Changes) > 0, "rolling: a generation that the store lacks": tells && q.Window.Gen == r.Window.Gen && was.Window.Gen < r.Window.Gen,
		"rolling: over the limit": tells && r.Used > q.Limit.Tokens, "rolling: three clients": r.Clients > 2, "rolling: leaving": tells && q.Leaving, "rolling: called": r.Called > 0,
		"rolling: idle elsewhere": r.Idle > 0, "rolling: charged without a client": q.Client == "" && r.Grant > 0, "rolling: refused without a client": q.Client == "" && r.Frees > 0,
		"rolling: overrun without a client": q.Client == "" && of(1) && q.Window.Gen == r.Window.Gen, "rolling: new life": tells && q.Life > 1,
		"rolling: the clock stepped back": r.Now > Now(ctx).UnixMicro(),
	})
}

func (s *spoiled) Reset(ctx context.Context, key string, l backend.Limit) (backend.Window, error) {
	if s.reset != nil && l.Rolls == s.rolls {
		return s.reset(s, ctx, key, l)
	}
	w, err := s.model.Reset(ctx, key, l)
	s.note(map[string]bool{"reset": w.End != 0, "nothing to reset": w.End == 0, "reset twice": w.Gen != 0})
	return w, err
}

func (s *spoiled) LoseCount(ctx context.Context, key, counter string) error {
	if s.lost != nil {
		return s.lost(s, ctx, key, counter, "count")
	}
	return s.model.LoseCount(ctx, key, counter)
}

func (s *spoiled) LoseEnd(ctx context.Context, key, counter string) error {
	if s.lost != nil {
		return s.lost(s, ctx, key, counter, "end")
	}
	return s.model.LoseEnd(ctx, key, counter)
}

// TestRandomCallsReachAll: nothing that random calls are for is rare.
func TestRandomCallsReachAll(t *testing.T) {
	s := &spoiled{model: newModel()}
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
func (r *recorder) Errorf(format string, args ...any) {
	r.failure += fmt.Sprintf(format, args...)
}
func (r *recorder) Error(args ...any) { r.failure += fmt.Sprint(args...) }
func (r *recorder) Fatalf(format string, args ...any) {
	r.failure += fmt.Sprintf(format, args...)
	runtime.Goexit()
}
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// failure is how test fails with a store, or "".
func failure(t *testing.T, test func(t testing.TB)) string {
	r, done := &recorder{TB: t}, make(chan struct{})
	go func() {
		defer close(done)
		test(r)
	}()
	<-done
	return r.failure
}
