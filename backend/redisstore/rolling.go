package redisstore

import (
	"context"

	"github.com/go-reservoir/reservoir/backend"
)

// rolled is how many integers a reply about a rolling limit has. That of SyncRolling has more.
const rolled = 6

// rollingCall returns a request of the script for rolling limits.
func rollingCall(sc *script, key string, l backend.Limit, args ...any) request {
	return request{script: sc, key: key, limit: l, args: append([]any{sc.op, l.Tokens, l.Window.Milliseconds()}, args...)}
}

// SyncRolling implements backend.RollingStore with one EVALSHA.
func (s *Store) SyncRolling(ctx context.Context, r backend.SyncRequest) (out backend.SyncReply, err error) {
	args := []any{r.Client, r.Want, r.Need, r.Least, bits(r.Exact, r.Idle < 0, r.Waited, r.Leaving)}
	if r.Peers|r.Pace|r.Account|r.Window.End|r.Debt != 0 { // a first contact has none of these
		args = append(args, r.Peers, r.Pace, r.Account, r.Window.End, r.Granted, r.Returned, r.Debt, r.Total, r.Used, max(r.Idle, 0), r.Refunded, r.RefundedIn.End)
		for _, p := range r.Spent {
			args = append(args, p.Slice, p.Tokens)
		}
	}
	q := rollingCall(syncRolling, r.Key, r.Limit, args...)
	q.fault, q.detached = r.Validate(), r.Detached
	v, err := s.do(ctx, q)
	if err != nil {
		return out, err
	}
	more := v[rolled:]
	return backend.SyncReply{
		State:      rollingState(v),
		Carried:    v[0]&flagCarried != 0,
		Learning:   v[0]&flagLearning != 0,
		Grant:      more[0],
		Recovered:  more[1],
		Granted:    more[2],
		Returned:   more[3],
		Debt:       more[4],
		Clients:    more[5],
		Reasserted: more[6],
		Total:      more[7],
		Over:       more[8],
		Idle:       more[9],
		Called:     more[10],
		Account:    more[11],
	}, nil
}

// TakeRolling implements backend.RollingStore with one EVALSHA. If ctx ends before the reply comes,
// the tokens may stay charged for a window. The reply to a detached one that was
// sent is awaited beyond the deadline, for two seconds or the client's timeouts.
func (s *Store) TakeRolling(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	q := rollingCall(takeRolling, r.Key, r.Limit, r.Tokens, min(r.Within, r.Limit.Window/4).Microseconds())
	q.fault, q.detached = r.Validate(), r.Detached
	v, err := s.do(ctx, q)
	if v == nil {
		return backend.TakeReply{}, err
	}
	return backend.TakeReply{State: rollingState(v), Allowed: v[0]&flagAllowed != 0, Idle: v[0]&flagIdle != 0, Called: v[0]&flagCalled != 0}, err
}

// SettleRolling implements backend.RollingStore with one EVALSHA.
func (s *Store) SettleRolling(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	q := rollingCall(settleRolling, r.Key, r.Limit, r.Tokens, r.Window.End)
	q.fault = r.Validate()
	v, err := s.do(ctx, q)
	if err != nil {
		return backend.SettleReply{}, err
	}
	return backend.SettleReply{Open: v[0]&flagDone != 0, Over: v[3]}, nil
}

// rollingState reads the first fields of a reply.
func rollingState(v []int64) backend.State {
	return backend.State{Window: backend.Window{End: v[2]}, Remaining: v[3], Left: microseconds(v[4]), Frees: microseconds(v[5])}
}
