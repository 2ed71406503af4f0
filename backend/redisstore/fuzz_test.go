package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// typed checks that err is of a kind that callers can tell apart.
func typed(t *testing.T, err error) {
	t.Helper()
	var failure *backend.Error
	if err == nil || errors.As(err, &failure) {
		return
	}
	fault := errors.Is(err, backend.ErrKey) || errors.Is(err, backend.ErrLimit) || errors.Is(err, backend.ErrTokens)
	require.True(t, fault, "%#v", err)
}

// FuzzContents puts anything into the three keys. An answer charges what it says
// and no more than the limit; an error changes nothing.
func FuzzContents(f *testing.F) {
	client := redistest.Start(f).Client()
	s := redisstore.New(client)
	end := fmt.Sprint(time.Now().Add(time.Hour).Unix())
	for _, seed := range [][4]string{
		{"3", end + ".000", end + "000 2 1", end + "000 1 0 2"},
		{"9007199254740991", end, end + "000 9007199254740991 1", end + "000 1 0 9007199254740991"},
		{"10", end, end + "000.17 3 2 1 0 0+1 0 0 0 0", "~" + end + "000.17 1 0 1+1"},
		{"-4", end, "0 0 0", ""},
		{" 7", "1e9", "nan 0 0", "01"},
		{"0x10", end + "e0", "head", "1 1 1"},
		{"7", end, end + "000 7 3 0 0 0", "0.17 1 0 0+"},
		{"1e3", "9007199254739", "9007199254739000 9007199254740991 0", "0 0 0 0"},
		{"", "", "", ""},
		{"inf", "-inf", "inf inf inf", "inf"},
		{"1\x00", end, end, "\xff"},
		{"3", "17952739.00", end + "000 \x10 1", "2F"}, // a window that is long over
		{"3", "0", end + "000 2 1", "~0 1 0 2"},
		{"0", "0", "10000000000000000 0 0", "0"},
		{"0", "0", "0.9007199254740991 0 0", "0"},
		{"0", end, "0.17 0 0", end + "000.17 0 0 0+1"}, // idle more than all
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], int64(10), int64(4))
	}
	f.Fuzz(func(t *testing.T, used, exp, head, account string, tokens, want int64) {
		ctx := t.Context()
		limit := backend.Limit{Tokens: 1 + abs(tokens)%1000, Window: time.Hour}
		want = 1 + abs(want)%limit.Tokens
		const count, stop, own = "{k}:3600s", "{k}:3600s:exp", "{k}:3600s:own"
		for op := range 4 {
			require.NoError(t, client.FlushDB(ctx).Err())
			require.NoError(t, client.MSet(ctx, count, used, stop, exp).Err())
			require.NoError(t, client.HSet(ctx, own, "head", head, "a", account).Err())
			before := contents(t, client)
			state, err := s.Check(ctx, "k", limit)
			typed(t, err)
			require.Equal(t, before, contents(t, client))
			was := int64(-1) // unknown
			if err == nil && state.Window.End != 0 && state.Remaining > 0 {
				was = limit.Tokens - state.Remaining
			}
			var r backend.Reply
			switch op {
			case 0:
				r, err = s.Sync(ctx, backend.Statement{Key: "k", Client: "a", Life: 1, Seq: 1, Limit: limit, Want: want, Need: want, Hints: backend.Hints{Exact: true}})
			case 1:
				r, err = charge(ctx, s, "k", limit, want)
			case 2:
				_, err = s.Inspect(ctx, "k")
				typed(t, err)
				require.Equal(t, before, contents(t, client))
				continue
			default:
				_, err = s.Reset(ctx, "k", limit)
			}
			typed(t, err)
			if err != nil {
				require.Equal(t, before, contents(t, client), "op %d: %v", op, err)
				continue
			}
			if r.Grant == 0 {
				continue
			}
			after, err := client.Get(ctx, count).Int64()
			require.NoError(t, err)
			require.Equal(t, r.Used, after)
			require.LessOrEqual(t, after, limit.Tokens)
			require.LessOrEqual(t, r.Grant, want)
			if op == 1 && was >= 0 && state.Window.End == r.Window.End {
				require.Equal(t, was+want, after)
			}
		}
	})
}

func abs(n int64) int64 {
	if n < 0 {
		return -(n + 1)
	}
	return n
}

// vast is the length of a reply that go-redis makes room for before it comes: a
// server can so exhaust a client's memory. SECURITY.md says so.
var vast = regexp.MustCompile(`[*$%~>|=!][+]?[0-9]{6}`)

// FuzzReplies has a limiter and a store talk to a server that answers anything:
// nobody panics or waits, errors have types, and each token is accounted for.
func FuzzReplies(f *testing.F) {
	end := time.Now().Add(time.Hour).UnixMilli()
	good := []int64{0, time.Now().UnixMicro(), end, 0, 90, 10, 10, 1, 0, 0, 0}
	f.Add(array(good), uint8(3))
	for i := range good {
		for _, n := range []int64{-1, 1 << 62, -1 << 63} {
			bad := append([]int64{}, good...)
			bad[i] = n
			f.Add(array(bad), uint8(3))
		}
	}
	for _, seed := range []string{"", "$-1\r\n", "*-1\r\n", "*0\r\n", "*5\r\n:8\r\n:1\r\n", ":1\r\n", "+OK\r\n", "-\r\n", "-NOSCRIPT x\r\n", "-MOVED 1 a:1\r\n",
		"-LOADING\r\n", "*2\r\n*1\r\n:1\r\n:2\r\n", "*9999\r\n", "$9999\r\n", "*12\r\n*9\r\n", "%1\r\n+a\r\n:1\r\n", "\x00\xff", "*5\r\n$1\r\n1\r\n$-1\r\n:1\r\n:1\r\n:1\r\n",
		">2\r\n+a\r\n+b\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n", "=5\r\ntxt:a\r\n", "~1\r\n:1\r\n", "|1\r\n+a\r\n+b\r\n:1\r\n"} {
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, reply []byte, n uint8) {
		if vast.Match(reply) {
			return
		}
		client := redis.NewClient(&redis.Options{
			Addr: redisstore.AnswersScripts(t, string(reply)), MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, Protocol: 2,
			ReadTimeout: 20 * time.Millisecond, ContextTimeoutEnabled: true,
		})
		defer client.Close()
		s := redisstore.New(client)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for op, err := range allCalls(ctx, s, "k") {
			typed(t, err)
			if op == "sync" && err != nil && bytes.HasPrefix(reply, []byte("*")) && !strings.Contains(err.Error(), "too late") {
				require.NotEqual(t, backend.Unavailable, class(t, err), "it may be charged: %v", err)
			}
		}
		possible(ctx, t, s)
		l, err := reservoir.New(s, reservoir.PerHour(100))
		require.NoError(t, err)
		for range 5 {
			_, err := l.AllowN(ctx, "k", 1+int64(n)%100)
			typed(t, err)
		}
		closing, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer stop()
		_ = l.Close(closing)
		st := l.Stats()
		require.Equal(t, st.Taken+st.Refunded, st.Spent+st.Returned+st.Expired+st.Held, "%+v", st)
		for _, n := range []int64{st.Taken, st.Spent, st.Returned, st.Expired, st.Held} {
			require.GreaterOrEqual(t, n, int64(0), "%+v", st)
		}
	})
}

// possible checks that what comes through to a limiter is what a store can say.
func possible(ctx context.Context, t *testing.T, s backend.Store) {
	t.Helper()
	r, err := s.Sync(ctx, backend.Statement{Key: "k", Client: "a", Life: 1, Seq: 1, Limit: limit10, Want: 4})
	typed(t, err)
	state, err := s.Check(ctx, "k", limit10)
	typed(t, err)
	void, err := s.Reset(ctx, "k", limit10)
	typed(t, err)
	for _, n := range []int64{r.Now, r.Window.End, r.Window.Gen, r.Remaining, r.Used, r.Grant, r.Mine, r.Clients, int64(r.Lasted), r.Idle, r.Called,
		state.Window.End, state.Window.Gen, state.Remaining, void.End, void.Gen} {
		require.GreaterOrEqual(t, n, int64(0), "%+v %+v %+v", r, state, void)
	}
	for _, n := range []int64{r.Remaining, r.Used, r.Grant, r.Mine, state.Remaining} {
		require.LessOrEqual(t, n, int64(backend.MaxTokens), "%+v %+v", r, state)
	}
	require.GreaterOrEqual(t, r.Left, time.Duration(0))
}

// array is a reply of integers.
func array(list []int64) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(list))
	for _, n := range list {
		b = fmt.Appendf(b, ":%d\r\n", n)
	}
	return b
}
