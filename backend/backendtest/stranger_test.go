package backendtest_test

import (
	"context"
	"encoding/hex"
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

// stranger is a store such as somebody else would write it, with a client of theirs.
type stranger struct {
	client *redis.Client
	now    func(ctx context.Context) time.Time
}

func (s stranger) Sync(ctx context.Context, r backend.SyncRequest) (reply backend.SyncReply, err error) {
	if err := r.Validate(); err != nil {
		return reply, err
	}
	if r.Limit.Rolls {
		return s.syncRolling(ctx, r)
	}
	leaving := 0
	if r.Leaving {
		leaving = 1
	}
	how := 0
	if r.Exact {
		how = 1
	}
	if r.Idle < 0 { // it gets no messages
		how += 2
	}
	if r.Waited {
		how += 4
	}
	n, err := s.eval(ctx, "sync", lua.Sync, r.Key, r.Client, r.Limit.Tokens, r.Limit.Window.Milliseconds(), r.Want, r.Need, r.Least, how,
		r.Peers, r.Pace, int64(r.End), int64(r.Next), leaving, int64(r.Window), r.Granted, r.Returned, r.Debt, r.Total, r.Used, r.OpenLength.Milliseconds(), max(r.Idle, 0), r.Run, 0, s.now(ctx).UnixMicro())
	if err != nil {
		return reply, err
	}
	if n[0]&16 != 0 { // the open window has another length
		return backend.SyncReply{State: state(n), Granted: r.Granted, Returned: r.Returned, Debt: r.Debt, Clients: n[10]}, nil
	}
	if len(n) == 6 { // a first contact
		n = append(n, 0, n[5], 0, 0, 1, 0, 0, n[5], 0, 0, 0)
	}
	return backend.SyncReply{
		State: state(n), Carried: n[0]&2 != 0, Learning: n[0]&4 != 0, Grant: n[5], Recovered: n[6], Granted: n[7], Returned: n[8], Debt: n[9],
		Clients: n[10], Reasserted: n[11], Lasted: time.Duration(n[12]) * time.Millisecond, Total: n[13], Over: n[14], Idle: n[15], Called: n[16],
	}, nil
}

func (s stranger) Take(ctx context.Context, r backend.TakeRequest) (reply backend.TakeReply, err error) {
	if err := r.Validate(); err != nil {
		return reply, err
	}
	if r.Limit.Rolls {
		n, err := s.roll(ctx, "take", r.Key, r.Limit, r.OpenLength, r.Tokens, min(r.Within, r.Limit.Window/4).Microseconds())
		return backend.TakeReply{State: rolled(n), Allowed: n[0]&8 != 0, Idle: n[0]&64 != 0, Called: n[0]&128 != 0}, err
	}
	n, err := s.eval(ctx, "take", lua.Take, r.Key, r.Tokens, r.Limit.Tokens, r.Limit.Window.Milliseconds(), int64(r.End), int64(r.Next), r.OpenLength.Milliseconds(), 0, s.now(ctx).UnixMicro())
	if err != nil {
		return reply, err
	}
	return backend.TakeReply{State: state(n), Allowed: n[0]&8 != 0, Idle: n[0]&64 != 0, Called: n[0]&128 != 0}, nil
}

func (s stranger) Check(ctx context.Context, key string, l backend.Limit) (reply backend.State, err error) {
	if err := (backend.TakeRequest{Key: key, Limit: l, Tokens: 1}).Validate(); err != nil {
		return reply, err
	}
	if l.Rolls {
		n, err := s.roll(ctx, "check", key, l, 0)
		return rolled(n), err
	}
	n, err := s.eval(ctx, "check", lua.Check, key, l.Tokens, l.Window.Milliseconds(), s.now(ctx).UnixMicro())
	if err != nil {
		return reply, err
	}
	return state(n), nil
}

func (s stranger) Settle(ctx context.Context, r backend.SettleRequest) (reply backend.SettleReply, err error) {
	if err := r.Validate(); err != nil {
		return reply, err
	}
	if r.Rolling != 0 {
		n, err := s.roll(ctx, "settle", r.Key, backend.Limit{Tokens: r.Limit, Window: r.Rolling}, 0, r.Tokens, int64(r.Window))
		return backend.SettleReply{Open: n[0]&8 != 0, Over: n[3]}, err
	}
	n, err := s.eval(ctx, "settle", lua.Settle, r.Key, r.Tokens, r.Limit, int64(r.Window), 0, s.now(ctx).UnixMicro())
	if err != nil {
		return reply, err
	}
	return backend.SettleReply{Open: n[0]&8 != 0, Over: n[2]}, nil
}

func (s stranger) Reset(ctx context.Context, r backend.ResetRequest) (reply backend.State, err error) {
	if err := r.Validate(); err != nil {
		return reply, err
	}
	if r.Limit.Rolls {
		n, err := s.roll(ctx, "reset", r.Key, r.Limit, r.OpenLength)
		return rolled(n), err
	}
	n, err := s.eval(ctx, "reset", lua.Reset, r.Key, r.Limit.Tokens, r.Limit.Window.Milliseconds(), int64(r.End), int64(r.Next), r.OpenLength.Milliseconds(), 0, s.now(ctx).UnixMicro())
	if err != nil {
		return reply, err
	}
	return state(n), nil
}

func (s stranger) eval(ctx context.Context, op, script, key string, args ...any) ([]int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, &backend.Error{Op: op, Class: backend.Unavailable, Err: err}
	}
	k := "{" + hex.EncodeToString([]byte(key)) + "}"
	keys := []string{k, k + ":exp", k + ":own"}
	if script == lua.Rolling {
		keys = []string{k + ":roll", k}
	}
	n, err := s.client.Eval(ctx, script, keys, args...).Int64Slice()
	if err != nil {
		return nil, &backend.Error{Op: op, Err: err}
	}
	return n, nil
}

// syncRolling is Sync of a rolling limit, which always states all.
func (s stranger) syncRolling(ctx context.Context, r backend.SyncRequest) (reply backend.SyncReply, err error) {
	how := 0
	for bit, is := range []bool{r.Exact, r.Idle < 0, r.Waited, r.Leaving} {
		if is {
			how += 1 << bit
		}
	}
	args := []any{r.Client, r.Want, r.Need, r.Least, how, r.Peers, r.Pace, r.Account, int64(r.Window), r.Granted, r.Returned, r.Debt,
		r.Total, r.Used, max(r.Idle, 0), r.Refunded, int64(r.RefundedIn)}
	for _, spent := range r.Spent {
		args = append(args, spent.Slice, spent.Tokens)
	}
	n, err := s.roll(ctx, "sync", r.Key, r.Limit, r.OpenLength, args...)
	if n[0]&16 != 0 {
		return backend.SyncReply{State: rolled(n), Account: r.Account, Granted: r.Granted, Returned: r.Returned, Debt: r.Debt, Clients: n[12]}, err
	}
	return backend.SyncReply{
		State: rolled(n), Carried: n[0]&2 != 0, Learning: n[0]&4 != 0, Grant: n[7], Recovered: n[8], Granted: n[9], Returned: n[10], Debt: n[11],
		Clients: n[12], Reasserted: n[13], Total: n[14], Over: n[15], Idle: n[16], Called: n[17], Account: n[18],
	}, err
}

// roll makes a call of a rolling limit. Its reply is zeros after an error.
func (s stranger) roll(ctx context.Context, op, key string, l backend.Limit, open time.Duration, args ...any) ([]int64, error) {
	args = append([]any{op, l.Tokens, l.Window.Milliseconds(), open.Milliseconds()}, args...)
	n, err := s.eval(ctx, op, lua.Rolling, key, append(args, 0, s.now(ctx).UnixMicro())...)
	if err != nil {
		n = make([]int64, 19)
	}
	return n, err
}

// rolled is a reading of a rolling limit.
func rolled(n []int64) backend.State {
	s := state(n)
	s.Left, s.Frees = time.Duration(n[5])*time.Microsecond, time.Duration(n[6])*time.Microsecond
	return s
}

// state is a reading, with which the reply of every script but settle begins.
func state(n []int64) (s backend.State) {
	s = backend.State{Window: backend.Window(n[2]), Remaining: n[3], Length: time.Duration(n[4]) * time.Millisecond, Conflict: n[0]&16 != 0}
	if s.Window != 0 {
		s.Left = s.Window.Time().Sub(time.UnixMicro(n[1]))
	}
	return s
}
