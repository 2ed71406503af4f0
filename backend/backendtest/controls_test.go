package backendtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// control is a store without one rule of the protocol.
type control struct {
	spoiled
	section string // of the scripts, which finds that
	law     bool   // the model alone finds that tokens are over, or lost
	mute    bool   // only messages show it, so random calls do not
}

// controls has, for each rule, a store that is without it.
var controls = map[string]control{
	"no order": {section: "Statements", law: true, spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) {
		if s.seq++; q.Client != "" {
			q.Life, q.Seq = 1, s.seq
		}
	}}},
	"no lives": {section: "Lives", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) { q.Life = min(q.Life, 1) }}},
	"an account for each process": {section: "Limiters", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) {
		q.Client = strings.ReplaceAll(q.Client, "p.2", "p.1")
	}}},
	"no generation": {section: "Reset", law: true, spoiled: spoiled{reset: func(s *spoiled, ctx context.Context, key string, l backend.Limit) (backend.Window, error) {
		state, err := s.model.Check(ctx, key, l)
		if err != nil {
			return state.Window, err
		}
		_ = s.model.LoseCount(ctx, key, l.Counter())
		_ = s.model.LoseEnd(ctx, key, l.Counter())
		_ = s.model.LoseLedger(ctx, key, l.Counter())
		return state.Window, nil
	}}},
	"no reset where none is open": {section: "ResetOfNone", spoiled: spoiled{reset: func(s *spoiled, ctx context.Context, key string, l backend.Limit) (backend.Window, error) {
		if state, err := s.model.Check(ctx, key, l); err == nil && state.Window.End == 0 {
			return state.Window, nil
		}
		return s.model.Reset(ctx, key, l)
	}}},
	"no generation of a clock that stepped back": {section: "Clock", spoiled: spoiled{after: func(s *spoiled, ctx context.Context, q backend.Statement, r *backend.Reply) {
		r.Window.Gen = 0
	}}},
	"any time is in the period": {section: "Calendar", spoiled: spoiled{before: func(s *spoiled, ctx context.Context, q *backend.Statement) {
		if now := Now(ctx).UnixMilli(); q.Begin != 0 {
			q.Begin, q.End = min(q.Begin, now), max(q.End, now+1)
		}
	}}},
	"no sum of the accounts": {section: "LostCount", spoiled: spoiled{lost: func(s *spoiled, ctx context.Context, key, counter, part string) error {
		_ = s.model.LoseLedger(ctx, key, counter)
		_ = s.model.LoseCount(ctx, key, counter)
		if part == "end" {
			_ = s.model.LoseEnd(ctx, key, counter)
		}
		return nil
	}}},
	"no claims": {section: "LostLedger", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) {
		if q.Client != "" { // what it was charged is charged anew
			q.Change, q.Mine = q.Change+q.Mine, 0
		}
	}}},
	"what was given back is claimed by nobody": {section: "LostLedger", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) {
		if q.Client != "" && q.Change < 0 {
			q.Mine, q.Change = max(q.Mine+q.Change, 0), 0
		}
	}}},
	"no window is taken over": {section: "Adopt", spoiled: spoiled{before: func(s *spoiled, ctx context.Context, q *backend.Statement) {
		if state, err := s.model.Check(ctx, q.Key, q.Limit); err == nil && state.Window.End == 0 {
			q.Runs = false
		}
	}}},
	"nothing is carried": {section: "Carry", spoiled: spoiled{before: func(s *spoiled, ctx context.Context, q *backend.Statement) {
		if state, err := s.model.Check(ctx, q.Key, q.Limit); err == nil && state.Window.End != 0 {
			q.Runs = false
		}
	}}},
	"what all were charged is not taken over": {section: "Adopt", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) { q.Used = 0 }}},
	"what is over is carried": {section: "NextWindow", law: true, spoiled: spoiled{before: func(s *spoiled, ctx context.Context, q *backend.Statement) {
		if state, err := s.model.Check(ctx, q.Key, q.Limit); err == nil && q.Window.End != 0 {
			q.Window = state.Window
		}
	}}},
	"a give-back is not heard":   {section: "GiveBack", law: true, spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) { q.Change = max(q.Change, 0) }}},
	"what was used above is not": {section: "Overdraw", law: true, spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) { q.Change = min(q.Change, 0) }}},
	"a grant that is not charged": {section: "Take", law: true, spoiled: spoiled{after: func(s *spoiled, _ context.Context, q backend.Statement, r *backend.Reply) {
		if q.Need > 0 && r.Grant == 0 && !r.Void && !r.Astray && q.Client == "" {
			r.Grant = q.Need
		}
	}}},
	"a part of what is needed": {section: "Take", law: true, spoiled: spoiled{before: func(s *spoiled, ctx context.Context, q *backend.Statement) {
		if state, err := s.model.Check(ctx, q.Key, q.Limit); err == nil && q.Client == "" && q.Need > state.Remaining {
			q.Need = state.Remaining
		}
	}}},
	"used in any window": {section: "Use", law: true, spoiled: spoiled{before: func(s *spoiled, ctx context.Context, q *backend.Statement) {
		if state, err := s.model.Check(ctx, q.Key, q.Limit); err == nil && q.Client == "" {
			q.Window = state.Window
		}
	}}},
	"one counter for all lengths": {section: "Lengths", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) {
		if q.Begin == 0 {
			q.Limit.Window = far
		}
	}}},
	"a limit that stays the first one's": {section: "TwoLimits", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) {
		q.Limit.Tokens = max(q.Limit.Tokens, 1000)
	}}},
	"less than the first one needs":      {section: "Least", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) { q.Least = 0 }}},
	"who has left counts":                {section: "Leaving", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) { q.Leaving = false }}},
	"tokens are idle where nobody hears": {section: "Idle", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) { q.Deaf = false }}},
	"who waits no longer is waited for":  {section: "CalledAgain", spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) { q.GaveUp = false }}},
	"rolling: no order": {section: "RollingLostReply", law: true, spoiled: spoiled{rolls: true, before: func(s *spoiled, _ context.Context, q *backend.Statement) {
		if s.seq++; q.Client != "" {
			q.Life, q.Seq = 1, s.seq
		}
	}}},
	"rolling: what was not read stays": {section: "RollingLostReply", law: true, spoiled: spoiled{rolls: true, before: func(_ *spoiled, _ context.Context, q *backend.Statement) { q.Known = q.Seq }}},
	"rolling: what was read is undone": {section: "RollingLostReply", law: true, spoiled: spoiled{rolls: true, before: func(_ *spoiled, _ context.Context, q *backend.Statement) { q.Known = 0 }}},
	"rolling: a give-back is not heard": {section: "RollingGiveBack", law: true, spoiled: spoiled{rolls: true, before: func(_ *spoiled, _ context.Context, q *backend.Statement) {
		q.Changes = slices.DeleteFunc(slices.Clone(q.Changes), func(d backend.Change) bool { return d.Tokens < 0 })
	}}},
	"rolling: what was used is not heard": {section: "RollingUse", law: true, spoiled: spoiled{rolls: true, before: func(_ *spoiled, _ context.Context, q *backend.Statement) {
		q.Changes = slices.DeleteFunc(slices.Clone(q.Changes), func(d backend.Change) bool { return d.Tokens > 0 })
	}}},
	"rolling: changes are of any bucket": {section: "RollingGiveBack", law: true, spoiled: spoiled{rolls: true, before: func(_ *spoiled, ctx context.Context, q *backend.Statement) {
		q.Changes = slices.Clone(q.Changes)
		for i := range q.Changes {
			q.Changes[i].Bucket = backend.Bucket(Now(ctx).UnixMicro(), q.Limit.Window)
		}
	}}},
	"rolling: no lives": {section: "RollingGiveBack", spoiled: spoiled{rolls: true, before: func(_ *spoiled, _ context.Context, q *backend.Statement) { q.Life = min(q.Life, 1) }}},
	"rolling: any generation": {section: "RollingReset", spoiled: spoiled{rolls: true, before: func(s *spoiled, ctx context.Context, q *backend.Statement) {
		if state, err := s.model.Check(ctx, q.Key, q.Limit); err == nil {
			q.Window.Gen = state.Window.Gen
		}
	}}},
	"rolling: three buckets later": {section: "RollingTake", law: true, spoiled: spoiled{rolls: true, after: func(_ *spoiled, _ context.Context, _ backend.Statement, r *backend.Reply) {
		for i := range r.Grants {
			r.Grants[i].Bucket += 3
		}
	}}},
	"rolling: all in the present bucket":     {section: "RollingSpread", spoiled: spoiled{rolls: true, before: func(_ *spoiled, _ context.Context, q *backend.Statement) { q.Need = q.Want }}},
	"rolling: for now, though it has tokens": {section: "RollingSpread", spoiled: spoiled{rolls: true, before: func(_ *spoiled, _ context.Context, q *backend.Statement) { q.After = 0 }}},
	"rolling: a reply takes no time":         {section: "RollingTake", spoiled: spoiled{rolls: true, before: func(_ *spoiled, _ context.Context, q *backend.Statement) { q.Within = 0 }}},
	"rolling: free too soon": {section: "RollingFrees", spoiled: spoiled{rolls: true, after: func(_ *spoiled, _ context.Context, q backend.Statement, r *backend.Reply) {
		r.Frees -= min(r.Frees, q.Limit.Window/backend.Buckets)
	}}},
	"rolling: everybody is let in": {section: "RollingTake", law: true, spoiled: spoiled{rolls: true, after: func(_ *spoiled, _ context.Context, q backend.Statement, r *backend.Reply) {
		if q.Client == "" && q.Need > 0 && r.Grant == 0 {
			r.Grant, r.Grants = q.Need, []backend.Change{{Bucket: backend.Bucket(r.Now, q.Limit.Window), Tokens: q.Need}}
		}
	}}},
	"nobody is called again": {section: "CalledAgain", mute: true, spoiled: spoiled{before: func(s *spoiled, _ context.Context, q *backend.Statement) { q.Waited = false }}},
}

// store returns the store of a control.
func (c control) store() *spoiled {
	s := c.spoiled
	s.model = newModel()
	return &s
}

// sectionOf returns the section of the scripts that has that name.
func sectionOf(t testing.TB, name string) string {
	list := sections(t)
	i := slices.IndexFunc(list, func(text string) bool { return strings.HasPrefix(text, name+" ") })
	return list[i]
}

// TestControls: the suite finds each store that is without a rule: a section of the scripts does, which a reader can check
// by eye; and random calls do.
func TestControls(t *testing.T) {
	defer func(was time.Duration) { patience = was }(patience)
	patience = 100 * time.Millisecond // for messages that do not come
	for name, c := range controls {
		t.Run(name, func(t *testing.T) {
			found := failure(t, func(t testing.TB) { runSection(t, c.store(), sectionOf(t, c.section)) })
			if found == "" {
				t.Errorf("%s passes", c.section)
			}
			t.Log(found)
			noticed := ""
			for i := 0; i < 20 && noticed == "" && !c.mute; i++ {
				noticed = failure(t, func(t testing.TB) { testRandom(t, c.store()) })
			}
			if noticed == "" && !c.mute {
				t.Error("random calls find nothing")
			}
		})
	}
}

// TestModelNotices: package naive alone, which knows nothing of the protocol, finds the stores that break a law.
func TestModelNotices(t *testing.T) {
	for name, c := range controls {
		if !c.law {
			continue
		}
		t.Run(name, func(t *testing.T) {
			noticed := ""
			for i := 0; i < 100 && noticed == ""; i++ {
				noticed = failure(t, func(t testing.TB) { playJudged(t, c.store(), true) })
			}
			if noticed == "" {
				t.Fatal("nobody noticed")
			}
			t.Log("noticed: ", noticed)
		})
	}
}
