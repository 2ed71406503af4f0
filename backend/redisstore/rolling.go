package redisstore

import (
	"context"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// rolled is how many integers a reply about a rolling limit has. Sync's has more.
const rolled = 7

// rolling makes q a request of the script for rolling limits.
func (q request) rolling(sc *script, l backend.Limit, open time.Duration, args ...any) request {
	q.script, q.args = sc, append([]any{sc.op, l.Tokens, l.Window.Milliseconds(), open.Milliseconds()}, args...)
	return q
}

// syncRolling is Sync of a rolling limit.
func (s *Store) syncRolling(ctx context.Context, r backend.SyncRequest) (out backend.SyncReply, err error) {
	args := []any{r.Client, r.Want, r.Need, r.Least, bits(r.Exact, r.Idle < 0, r.Waited, r.Leaving)}
	if r.Peers|r.Pace|r.Account|int64(r.Window)|r.Debt != 0 { // a first contact has none of these
		args = append(args, r.Peers, r.Pace, r.Account, int64(r.Window), r.Granted, r.Returned, r.Debt, r.Total, r.Used, max(r.Idle, 0), r.Refunded, int64(r.RefundedIn))
		for _, p := range r.Spent {
			args = append(args, p.Slice, p.Tokens)
		}
	}
	q := request{fault: r.Validate(), key: r.Key, detached: r.Detached}
	v, err := s.do(ctx, q.rolling(syncRolling, r.Limit, r.OpenLength, args...))
	if err != nil {
		return out, err
	}
	out.State = state(v)
	more := v[rolled:]
	if out.Clients = more[5]; out.Conflict {
		out.Account, out.Granted, out.Returned, out.Debt = r.Account, r.Granted, r.Returned, r.Debt
		return out, nil
	}
	out.Carried, out.Learning = v[0]&flagCarried != 0, v[0]&flagLearning != 0
	out.Grant, out.Recovered, out.Granted, out.Returned, out.Debt = more[0], more[1], more[2], more[3], more[4]
	out.Reasserted, out.Total, out.Over, out.Idle, out.Called, out.Account = more[6], more[7], more[8], more[9], more[10], more[11]
	return out, nil
}
