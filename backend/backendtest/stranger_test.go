package backendtest_test

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
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
	syncScript  = [2]*redis.Script{redis.NewScript(lua.Sync), redis.NewScript(lua.Roll)} // of fixed limits, and of rolling ones
	checkScript = [2]*redis.Script{redis.NewScript(lua.Check), redis.NewScript(lua.RollCheck)}
	resetScript = [2]*redis.Script{redis.NewScript(lua.Reset), redis.NewScript(lua.RollReset)}
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
	how := bits(q.Exact, q.Deaf, q.Waited, q.Leaving, q.Runs, q.GaveUp, true, q.Hold > 0) // the last but one: the time is given
	args := []any{q.Client, q.Limit.Tokens, q.Limit.Window.Milliseconds(), q.Need, how}
	if q.Limit.Rolls {
		args = append(args, q.Within.Microseconds())
	}
	if args = append(args, q.Want, q.Least, q.Life, q.Seq); q.Limit.Rolls {
		var changes []string
		for _, d := range q.Changes {
			changes = append(changes, fmt.Sprint(d.Bucket, " ", d.Tokens))
		}
		args = append(args, q.Window.Gen, q.Known, q.Idle, q.Pace, q.After, strings.Join(changes, " "))
	} else {
		window := fmt.Sprint(q.Window.End)
		if q.Window.Gen > 0 {
			window = fmt.Sprintf("%d.%d", q.Window.End, q.Window.Gen)
		}
		args = append(args, window, q.Mine, q.Change, q.Used, q.Idle, q.Pace, q.Run)
		if q.End != 0 {
			args = append(args, q.Begin, q.End)
		}
	}
	if q.Hold > 0 {
		args = append(args, (q.Hold + time.Millisecond - 1).Milliseconds())
	}
	n, err := s.eval(ctx, "sync", syncScript, q.Key, q.Limit, append(args, 0, s.now(ctx).UnixMicro())...)
	if err != nil {
		return r, err
	}
	n = append(n, make([]int64, max(12-len(n), 0))...) // zeros at the end are left out
	lasted, held, frees := n[8], n[11], int64(0)
	if q.Limit.Rolls {
		lasted, held, frees = 0, n[8], n[11]
	}
	r.State = reading(n, q.Limit, held)
	if r.Now, r.Astray, r.Void = n[1], n[0]&2 != 0, n[0]&4 != 0; r.Astray || r.Void {
		return backend.Reply{Now: r.Now, Astray: r.Astray, Void: r.Void}, nil
	}
	r.Used, r.Mine, r.Grant, r.Clients, r.Lasted = n[4], n[5], n[6], n[7], time.Duration(lasted)*time.Millisecond
	r.Idle, r.Called, r.Frees = n[9], n[10], time.Duration(frees)*time.Microsecond
	for grant := range slices.Chunk(n[12:], 2) {
		r.Grants = append(r.Grants, backend.Change{Bucket: grant[0], Tokens: grant[1]})
	}
	return r, nil
}

func (s stranger) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	if err := cmp.Or(backend.ValidateKey(key), l.Validate()); err != nil {
		return backend.State{}, err
	}
	args := []any{s.now(ctx).UnixMicro()}
	if l.Rolls {
		args = []any{l.Window.Milliseconds(), l.Tokens, args[0]}
	}
	n, err := s.eval(ctx, "check", checkScript, key, l, args...)
	if err != nil {
		return backend.State{}, err
	}
	held := n[5]
	if l.Rolls {
		held = n[7]
	}
	state := reading(n, l, held)
	if l.Rolls && state.Remaining == 0 {
		state.Frees = time.Duration(n[6]) * time.Microsecond
	}
	return state, nil
}

func (s stranger) Reset(ctx context.Context, key string, l backend.Limit) (void backend.Window, err error) {
	if err := cmp.Or(backend.ValidateKey(key), l.Validate()); err != nil {
		return void, err
	}
	n, err := s.eval(ctx, "reset", resetScript, key, l, l.Window.Milliseconds(), 0, s.now(ctx).UnixMicro())
	if err != nil {
		return void, err
	}
	return backend.Window{End: n[2], Gen: n[3]}, nil
}

func (s stranger) eval(ctx context.Context, op string, scripts [2]*redis.Script, key string, l backend.Limit, args ...any) ([]int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, &backend.Error{Op: op, Class: backend.Unavailable, Err: err}
	}
	k := "{" + hex.EncodeToString([]byte(key)) + "}:" + l.Counter()
	script, keys := scripts[0], []string{k, k + ":exp", k + ":own"}
	if l.Rolls {
		script, keys = scripts[1], keys[:1]
	}
	n, err := script.Run(ctx, s.client, keys, args...).Int64Slice()
	if err != nil {
		return nil, &backend.Error{Op: op, Err: err}
	}
	return n, nil
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

// reading is the window, and what is charged. It makes the time that of the counter: a rolling limit's may be ahead of the server's.
func reading(n []int64, l backend.Limit, held int64) backend.State {
	s := backend.State{Window: backend.Window{End: n[2], Gen: n[3]}, Remaining: max(l.Tokens-n[4], 0), Held: time.Duration(held) * time.Microsecond}
	if held > 0 {
		s.Remaining = 0
	}
	if l.Rolls {
		n[1], n[5] = n[1]+n[5], 0
	}
	if s.Window.End != 0 {
		s.Left = time.Duration(n[2]*1000-n[1]) * time.Microsecond
	}
	return s
}
