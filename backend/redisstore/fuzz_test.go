package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
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
	for _, seed := range [][5]string{
		{"3", end + ".000", end + "000", "0", "2"},
		{"9007199254740991", end, end + "000", "0", "9007199254740991 1"},
		{"10", end, end + "000", "1", "1 2"}, // returned more than granted
		{"-4", end, "0", "", ""},
		{" 7", "1e9", "nan", "-1", "01"},
		{"0x10", end + "e0", "w", "l", "1 1 1"},
		{"7", end, end + "000", "0 7 3", "4"},
		{"1e3", "9007199254739", "9007199254739000", "9007199254740991", "0"},
		{"", "", "", "", ""},
		{"inf", "-inf", "inf", "inf", "inf"},
		{"1\x00", end, end, end, "\xff"},
		{"9007199254740991", end, end + "000", "0", "9007191254740991 1"},
		{"3", "17952739.00", end + "000", "\x10", "2F"}, // a window that is long over
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4], int64(10), int64(4))
	}
	f.Fuzz(func(t *testing.T, used, exp, w, l, account string, tokens, want int64) {
		ctx := t.Context()
		limit := backend.Limit{Tokens: 1 + abs(tokens)%1000, Window: time.Hour}
		for op := range 4 {
			require.NoError(t, client.FlushDB(ctx).Err())
			require.NoError(t, client.MSet(ctx, "{k}", used, "{k}:exp", exp).Err())
			require.NoError(t, client.HSet(ctx, "{k}:own", "w", w+" "+l, "a", account).Err())
			before := contents(t, client)
			granted, returned, err := fuzzOne(ctx, s, op, limit, 1+abs(want)%limit.Tokens)
			typed(t, err)
			if err != nil {
				require.Equal(t, before, contents(t, client), "op %d: %v", op, err)
				continue
			}
			after, err := client.Get(ctx, "{k}").Int64()
			if err != nil || granted == 0 {
				continue // nothing was charged, so there may be nothing of ours
			}
			was, err := strconv.ParseInt(used, 10, 64)
			if err != nil {
				continue // Lua reads numbers in more forms
			}
			was = max(was, 0)
			require.LessOrEqual(t, after, max(limit.Tokens, was+handedOver(account)), "op %d", op)
			if after < was || returned > 0 || client.Get(ctx, "{k}:exp").Val() != exp { // another window, maybe
				was = 0
			}
			require.LessOrEqual(t, granted, max(after-was, 0)+handedOver(account), "op %d hands out what is charged", op)
		}
	})
}

// handedOver is the most that a ledger can have granted before.
func handedOver(account string) int64 {
	first, _, _ := bytes.Cut([]byte(account), []byte(" "))
	n, err := strconv.ParseInt(string(first), 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

func abs(n int64) int64 {
	if n < 0 {
		return -(n + 1)
	}
	return n
}

// fuzzOne makes one call and returns what it hands out.
func fuzzOne(ctx context.Context, s backend.Store, op int, l backend.Limit, n int64) (granted, returned int64, err error) {
	switch op {
	case 0:
		r, err := s.Sync(ctx, backend.SyncRequest{Key: "k", Client: "a", Limit: l, Want: n, Need: n, Exact: true})
		return r.Grant, r.Returned, err
	case 1:
		r, err := charge(ctx, s, "k", l, n)
		if r.Allowed {
			granted = n
		}
		return granted, 0, err
	case 2:
		_, err := s.Check(ctx, "k", l)
		return 0, 0, err
	default:
		_, err := s.Settle(ctx, backend.SettleRequest{Key: "k", Window: backend.Window(time.Now().Add(time.Hour).UnixMilli()), Tokens: -n, Limit: l.Tokens})
		return 0, 0, err
	}
}

// vast is the length of a reply that go-redis makes room for before it comes: a
// server can so exhaust a client's memory. SECURITY.md says so.
var vast = regexp.MustCompile(`[*$%~>|=!][+]?[0-9]{6}`)

// FuzzReplies has a limiter and a store talk to a server that answers anything:
// nobody panics or waits, errors have types, and each token is accounted for.
func FuzzReplies(f *testing.F) {
	end := time.Now().Add(time.Hour).UnixMilli()
	good := []int64{0, time.Now().UnixMicro(), end, 3_600_000_000, 90, 10, 0, 10, 0, 1, 0, 0}
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
			if op == "take" && err != nil && bytes.HasPrefix(reply, []byte("*")) && !strings.Contains(err.Error(), "too late") {
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
	r, err := s.Sync(ctx, backend.SyncRequest{Key: "k", Client: "a", Limit: limit10, Want: 4})
	typed(t, err)
	state, err := s.Check(ctx, "k", limit10)
	typed(t, err)
	settled, err := s.Settle(ctx, backend.SettleRequest{Key: "k", Window: 1, Tokens: -1, Limit: 1})
	typed(t, err)
	for _, n := range []int64{int64(r.Window), r.Remaining, r.Grant, r.Recovered, r.Granted, r.Returned, r.Clients, r.Reasserted,
		int64(state.Window), state.Remaining, settled.Over} {
		require.True(t, 0 <= n && n <= backend.MaxTokens, "%+v %+v %d", r, state, settled)
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
