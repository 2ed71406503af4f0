package backendtest_test

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
)

// A store that knows of nothing internal passes: here a simple client of the scripts.
func TestStranger(t *testing.T) {
	s := stranger{redistest.Start(t).Client(), backendtest.Now}
	backendtest.Run(t, func(*testing.T) backend.Store { return s })
}

var (
	syncScript    = redis.NewScript(lua.Sync)
	checkScript   = redis.NewScript(lua.Check)
	resetScript   = redis.NewScript(lua.Reset)
	rollingScript = redis.NewScript(lua.Rolling)
)

// stranger is a store such as somebody else would write it, with a client of theirs. Its statements always say all.
type stranger struct {
	client *redis.Client
	now    func(ctx context.Context) time.Time
}

func (s stranger) Sync(ctx context.Context, q backend.Statement) (r backend.Reply, err error) {
	if err := q.Validate(); err != nil {
		return r, err
	}
	how := bits(q.Exact, q.Deaf, q.Waited, q.Leaving, q.Runs, q.GaveUp, true) // the last: the time is given
	window := fmt.Sprint(q.Window.End)
	if q.Window.Gen > 0 {
		window = fmt.Sprintf("%d.%d", q.Window.End, q.Window.Gen)
	}
	args := []any{q.Client, q.Limit.Tokens, q.Limit.Window.Milliseconds(), q.Need, how, q.Want, q.Least, q.Life, q.Seq,
		window, q.Mine, q.Change, q.Used, q.Idle, q.Pace, q.Run}
	if q.End != 0 {
		args = append(args, q.Begin, q.End)
	}
	n, err := s.eval(ctx, "sync", syncScript, q.Key, q.Limit, append(args, 0, s.now(ctx).UnixMicro())...)
	if err != nil {
		return r, err
	}
	if r.Now, r.Astray, r.Void = n[1], n[0]&2 != 0, n[0]&4 != 0; r.Astray || r.Void {
		return r, nil
	}
	n = append(n, make([]int64, 11)...) // zeros at the end are left out
	return backend.Reply{
		State: reading(n, q.Limit), Now: n[1], Used: n[4], Mine: n[5], Grant: n[6], Clients: n[7], Lasted: time.Duration(n[8]) * time.Millisecond,
		Idle: n[9], Called: n[10],
	}, nil
}

func (s stranger) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	if err := cmp.Or(backend.ValidateKey(key), l.Validate()); err != nil {
		return backend.State{}, err
	}
	if l.Rolls {
		n, err := s.roll(ctx, "check", key, l)
		return rolled(n), err
	}
	n, err := s.eval(ctx, "check", checkScript, key, l, s.now(ctx).UnixMicro())
	if err != nil {
		return backend.State{}, err
	}
	return reading(n, l), nil
}

func (s stranger) Reset(ctx context.Context, key string, l backend.Limit) (void backend.Window, err error) {
	if err := cmp.Or(backend.ValidateKey(key), l.Validate()); err != nil {
		return void, err
	}
	if l.Rolls {
		_, err = s.roll(ctx, "reset", key, l)
		return void, err
	}
	n, err := s.eval(ctx, "reset", resetScript, key, l, l.Window.Milliseconds(), 0, s.now(ctx).UnixMicro())
	if err != nil {
		return void, err
	}
	return backend.Window{End: n[2], Gen: n[3]}, nil
}

func (s stranger) SyncRolling(ctx context.Context, r backend.SyncRequest) (reply backend.SyncReply, err error) {
	if err := r.Validate(); err != nil {
		return reply, err
	}
	args := []any{r.Client, r.Want, r.Need, r.Least, bits(r.Exact, r.Idle < 0, r.Waited, r.Leaving), r.Peers, r.Pace, r.Account, r.Window.End,
		r.Granted, r.Returned, r.Debt, r.Total, r.Used, max(r.Idle, 0), r.Refunded, r.RefundedIn.End}
	for _, spent := range r.Spent {
		args = append(args, spent.Slice, spent.Tokens)
	}
	n, err := s.roll(ctx, "sync", r.Key, r.Limit, args...)
	return backend.SyncReply{
		State: rolled(n), Carried: n[0]&2 != 0, Learning: n[0]&4 != 0, Grant: n[6], Recovered: n[7], Granted: n[8], Returned: n[9], Debt: n[10],
		Clients: n[11], Reasserted: n[12], Total: n[13], Over: n[14], Idle: n[15], Called: n[16], Account: n[17],
	}, err
}

func (s stranger) TakeRolling(ctx context.Context, r backend.TakeRequest) (reply backend.TakeReply, err error) {
	if err := r.Validate(); err != nil {
		return reply, err
	}
	n, err := s.roll(ctx, "take", r.Key, r.Limit, r.Tokens, min(r.Within, r.Limit.Window/4).Microseconds())
	return backend.TakeReply{State: rolled(n), Allowed: n[0]&8 != 0, Idle: n[0]&64 != 0, Called: n[0]&128 != 0}, err
}

func (s stranger) SettleRolling(ctx context.Context, r backend.SettleRequest) (reply backend.SettleReply, err error) {
	if err := r.Validate(); err != nil {
		return reply, err
	}
	n, err := s.roll(ctx, "settle", r.Key, r.Limit, r.Tokens, r.Window.End)
	return backend.SettleReply{Open: n[0]&8 != 0, Over: n[3]}, err
}

func (s stranger) eval(ctx context.Context, op string, script *redis.Script, key string, l backend.Limit, args ...any) ([]int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, &backend.Error{Op: op, Class: backend.Unavailable, Err: err}
	}
	k := "{" + hex.EncodeToString([]byte(key)) + "}:" + l.Counter()
	keys := []string{k}
	if !l.Rolls {
		keys = append(keys, k+":exp", k+":own")
	}
	n, err := script.Run(ctx, s.client, keys, args...).Int64Slice()
	if err != nil {
		return nil, &backend.Error{Op: op, Err: err}
	}
	return n, nil
}

// roll makes a call of a rolling limit. Its reply is zeros after an error.
func (s stranger) roll(ctx context.Context, op, key string, l backend.Limit, args ...any) ([]int64, error) {
	args = append([]any{op, l.Tokens, l.Window.Milliseconds()}, args...)
	n, err := s.eval(ctx, op, rollingScript, key, l, append(args, 0, s.now(ctx).UnixMicro())...)
	if err != nil {
		n = make([]int64, 18)
	}
	return n, err
}

// bits is the sum of 1, 2, 4 and so on for those that are true.
func bits(list ...bool) (sum int) {
	for i, is := range list {
		if is {
			sum += 1 << i
		}
	}
	return sum
}

// reading is that of a fixed limit: the window, and what is charged.
func reading(n []int64, l backend.Limit) backend.State {
	s := backend.State{Window: backend.Window{End: n[2], Gen: n[3]}, Remaining: max(l.Tokens-n[4], 0)}
	if s.Window.End != 0 {
		s.Left = time.Duration(n[2]*1000-n[1]) * time.Microsecond
	}
	return s
}

// rolled is a reading of a rolling limit.
func rolled(n []int64) backend.State {
	return backend.State{
		Window: backend.Window{End: n[2]}, Remaining: n[3],
		Left: time.Duration(n[4]) * time.Microsecond, Frees: time.Duration(n[5]) * time.Microsecond,
	}
}
