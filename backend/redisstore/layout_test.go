package redisstore_test

import (
	"context"
	_ "embed"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

var (
	//go:embed testdata/rate.lua
	rateSource string
	//go:embed testdata/check.lua
	checkSource string

	rate  = redis.NewScript(rateSource)
	check = redis.NewScript(checkSource)
)

// seconds writes a window's end as {k}:exp holds it.
func seconds(w backend.Window) string {
	if w%1000 == 0 {
		return fmt.Sprint(int64(w) / 1000)
	}
	return fmt.Sprintf("%d.%03d", w/1000, w%1000)
}

// TestLayout: what lies in Redis after charges.
func TestLayout(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client, redisstore.WithPrefix("rl:"))
	ctx := t.Context()

	w := take(t, s, "user 1", 1).Window
	require.Equal(t, w, take(t, s, "user 1", 2).Window)
	require.Equal(t, int64(w)+1000, client.PExpireTime(ctx, "rl:{user%201}").Val().Milliseconds(), "a second charge keeps it")
	require.Equal(t, "3", client.Get(ctx, "rl:{user%201}").Val())
	require.Equal(t, seconds(w), client.Get(ctx, "rl:{user%201}:exp").Val())
	require.EqualValues(t, 2, client.DBSize(ctx).Val(), "no ledger without batches")

	sync := func(r backend.SyncRequest) {
		r.Key, r.Limit, r.Exact = "user 1", limit10, true
		_, err := s.Sync(ctx, r)
		require.NoError(t, err)
	}
	sync(backend.SyncRequest{Client: "a", Want: 4})
	sync(backend.SyncRequest{Client: "b", Want: 2})
	sync(backend.SyncRequest{Client: "b", Window: w, Granted: 2, Returned: 1, Idle: 1})
	require.Equal(t, "8", client.Get(ctx, "rl:{user%201}").Val())
	require.Equal(t, map[string]string{
		"w": fmt.Sprintf("%d 2 7 0 3 0+5", w), "a": "4+4", "b": "2 1+1", // 3 were charged before there was a ledger
	}, client.HGetAll(ctx, "rl:{user%201}:own").Val())
	require.EqualValues(t, 3, client.DBSize(ctx).Val())

	for _, key := range []string{"rl:{user%201}", "rl:{user%201}:own"} {
		at := client.PExpireTime(ctx, key).Val()
		require.Equal(t, int64(w)+1000, at.Milliseconds(), "%s lives a second longer than the window", key)
	}
	require.Equal(t, int64(w)+1000+60_000, client.PExpireTime(ctx, "rl:{user%201}:exp").Val().Milliseconds(), "and the end a length longer still")
	sync(backend.SyncRequest{Client: "b", Window: w, Granted: 2, Returned: 1, Debt: 3, Leaving: true})
	require.Equal(t, map[string]string{"w": fmt.Sprintf("%d 1 10 0 3 %s", w, client.HGet(ctx, "rl:{user%201}:own", "w").Val()[23:]), "a": "4+4", "b": "~2 1 3"},
		client.HGetAll(ctx, "rl:{user%201}:own").Val())
	ledger := client.HGetAll(ctx, "rl:{user%201}:own").Val()
	for _, n := range []int64{-2, 1} {
		_, err := s.Settle(ctx, backend.SettleRequest{Key: "user 1", Window: w, Tokens: n, Limit: 10})
		require.NoError(t, err)
		require.Equal(t, int64(w)+1000, client.PExpireTime(ctx, "rl:{user%201}").Val().Milliseconds(), "it keeps it")
	}
	require.Equal(t, "10", client.Get(ctx, "rl:{user%201}").Val())
	ledger["w"] = strings.Replace(ledger["w"], " 0 3 ", " 0 1 ", 1) // the unattributed tokens may be those
	require.Equal(t, ledger, client.HGetAll(ctx, "rl:{user%201}:own").Val(), "no field of its own")
}

// TestCountBelowZero: another program's refund went too far. That is not a gift.
func TestCountBelowZero(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	for _, key := range []string{"a", "b", "c"} {
		take(t, s, key, 1)
		require.NoError(t, client.DecrBy(t.Context(), "{"+key+"}", 5).Err())
		require.EqualValues(t, 10, remaining(t, s, key))
		in, err := s.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.NotZero(t, in.Window)
		require.Zero(t, in.Used)
	}
	require.EqualValues(t, 8, take(t, s, "a", 2).Remaining)
	sync, err := s.Sync(t.Context(), backend.SyncRequest{Key: "b", Client: "x", Limit: limit10, Want: 10, Exact: true})
	require.NoError(t, err)
	require.EqualValues(t, 10, sync.Grant)
	require.Zero(t, sync.Remaining)
	state, err := s.Check(t.Context(), "c", limit10)
	require.NoError(t, err)
	_, err = s.Settle(t.Context(), backend.SettleRequest{Key: "c", Window: state.Window, Tokens: -1, Limit: 10})
	require.NoError(t, err)
	require.EqualValues(t, 10, remaining(t, s, "c"))
}

// TestCleansUp: Redis deletes what nobody asks for any more.
func TestCleansUp(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	short := backend.Limit{Tokens: 10, Window: time.Millisecond}
	_, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: short, Tokens: 1})
	require.NoError(t, err)
	_, err = s.Sync(t.Context(), backend.SyncRequest{Key: "k2", Client: "a", Limit: short, Want: 1, Need: 1})
	require.NoError(t, err)
	require.Positive(t, client.DBSize(t.Context()).Val())
	require.Eventually(t, func() bool { return client.DBSize(context.Background()).Val() == 0 }, 10*time.Second, 20*time.Millisecond)
}

// TestSharesWithGitHub: a program that runs the published scripts on the same
// keys has the same window and the same count.
func TestSharesWithGitHub(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	now := time.Now().Truncate(time.Second)
	at := func(d time.Duration) context.Context { return storeclock.With(t.Context(), now.Add(d)) }
	theirs := func(script *redis.Script, key string, args ...any) []int64 {
		t.Helper()
		got, err := script.Run(t.Context(), client, []string{key}, args...).Int64Slice()
		require.NoError(t, err)
		return got
	}
	clock := func(d time.Duration) string {
		return strconv.FormatFloat(float64(now.Add(d).UnixMicro())/1e6, 'f', 6, 64)
	}
	end := now.Unix() + 60

	// They open the window, and we charge to it.
	require.Equal(t, []int64{3, end}, theirs(rate, "{them}", 3, end, clock(0)))
	for _, r := range []struct{ n, remaining int64 }{{4, 3}, {4, 3}} {
		got, err := s.Take(at(time.Second), backend.TakeRequest{Key: "them", Limit: limit10, Tokens: r.n})
		require.NoError(t, err)
		require.EqualValues(t, end*1000, got.Window)
		require.Equal(t, r.remaining, got.Remaining)
	}
	sync, err := s.Sync(at(time.Second), backend.SyncRequest{Key: "them", Client: "a", Limit: limit10, Want: 2, Exact: true})
	require.NoError(t, err)
	require.EqualValues(t, end*1000, sync.Window)
	require.EqualValues(t, 1, sync.Remaining)
	require.Equal(t, []int64{9, end}, theirs(check, "{them}", clock(time.Second)))
	require.Equal(t, []int64{14, end}, theirs(rate, "{them}", 5, end, clock(2*time.Second)), "they know no limit")
	state, err := s.Check(at(2*time.Second), "them", limit10)
	require.NoError(t, err)
	require.Zero(t, state.Remaining)

	// We open it, and they charge to it.
	got, err := s.Take(at(0), backend.TakeRequest{Key: "us", Limit: limit10, Tokens: 2})
	require.NoError(t, err)
	ours := int64(got.Window) / 1000 // their reply is in whole seconds
	require.Equal(t, []int64{2, ours}, theirs(check, "{us}", clock(time.Second)))
	require.Equal(t, []int64{7, ours}, theirs(rate, "{us}", 5, end+100, clock(time.Second)))
	state, err = s.Check(at(time.Second), "us", limit10)
	require.NoError(t, err)
	require.Equal(t, backend.State{Window: got.Window, Left: 59 * time.Second, Remaining: 3}, state)

	// It ends for both at the same instant.
	require.Equal(t, []int64{7, ours}, theirs(check, "{us}", clock(60*time.Second)))
	require.Equal(t, []int64{0, 0}, theirs(check, "{us}", clock(60*time.Second+time.Millisecond)))
	next := now.Unix() + 120
	require.Equal(t, []int64{1, next}, theirs(rate, "{us}", 1, next, clock(60*time.Second+time.Millisecond)))

	// They opened the next one over our ledger, which is void.
	require.Equal(t, []int64{1, next}, theirs(rate, "{them}", 1, next, clock(61*time.Second)))
	sync, err = s.Sync(at(61*time.Second), backend.SyncRequest{
		Key: "them", Client: "a", Limit: limit10, Window: backend.Window(end * 1000), Granted: 2, Want: 4, Exact: true,
	})
	require.NoError(t, err)
	require.EqualValues(t, next*1000, sync.Window)
	require.EqualValues(t, 4, sync.Granted)
	require.EqualValues(t, 5, sync.Remaining)
}

// TestGarbage: what other programs left in our keys is an operator's matter.
func TestGarbage(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	end := fmt.Sprint(time.Now().Unix() + 60)
	w := end + "000"
	set := func(name, value string) []any { return []any{"set", name, value} }
	hash := func(name string, pairs ...any) []any { return append([]any{"hset", name}, pairs...) }
	for _, row := range []struct {
		what   string
		put    [][]any
		prefix string
		syncs  bool // only sync looks at it
	}{
		{"a word for a count", [][]any{set("{k}", "many"), set("{k}:exp", end)}, "BADSTATE", false},
		{"half a token", [][]any{set("{k}", "1.5"), set("{k}:exp", end)}, "BADSTATE", false},
		{"not a number", [][]any{set("{k}", "nan"), set("{k}:exp", end)}, "BADSTATE", false},
		{"infinitely many", [][]any{set("{k}", "inf"), set("{k}:exp", end)}, "BADSTATE", false},
		{"more than can be counted", [][]any{set("{k}", "9007199254740992"), set("{k}:exp", end)}, "BADSTATE", false},
		{"nothing for a count", [][]any{set("{k}", ""), set("{k}:exp", end)}, "BADSTATE", false},
		{"a word for an end", [][]any{set("{k}", "1"), set("{k}:exp", "soon")}, "BADSTATE", false},
		{"no end", [][]any{set("{k}", "1"), set("{k}:exp", "inf")}, "BADSTATE", false},
		{"not a time", [][]any{set("{k}", "1"), set("{k}:exp", "nan")}, "BADSTATE", false},
		{"an end before time began", [][]any{set("{k}", "1"), set("{k}:exp", "-1")}, "BADSTATE", false},
		{"a hash for a count", [][]any{hash("{k}", "a", "1"), set("{k}:exp", end)}, "WRONGTYPE", false},
		{"a hash for a count, without an end", [][]any{hash("{k}", "a", "1")}, "WRONGTYPE", false},
		{"a hash for an end", [][]any{set("{k}", "1"), hash("{k}:exp", "a", "1")}, "WRONGTYPE", false},
		{"a hash for an end, without a count", [][]any{hash("{k}:exp", "a", "1")}, "WRONGTYPE", false},
		{"a string for a ledger", [][]any{set("{k}", "1"), set("{k}:exp", end), set("{k}:own", "a")}, "WRONGTYPE", true},
		{"a string for a ledger, without a window", [][]any{set("{k}:own", "a")}, "WRONGTYPE", true},
		{"a word for an account", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w, "a", "much")}, "BADSTATE", true},
		{"four totals", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w, "a", "5 4 3 2")}, "BADSTATE", true},
		{"a total below 0", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w, "a", "-3")}, "BADSTATE", true},
		{"a total too large", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w, "a", "9007199254740992")}, "BADSTATE", true},
		{"a debt too large", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w, "a", "1 0 9007199254740992")}, "BADSTATE", true},
		{"a word for a window", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", "soon")}, "BADSTATE", true},
		{"a word for the clients", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w+" two")}, "BADSTATE", true},
		{"a word for a total", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w+" 1 all")}, "BADSTATE", true},
		{"too many numbers", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w+" 1 2 3 4 5 6")}, "BADSTATE", true},
		{"more unattributed tokens than can be counted", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w+" 1 1 0 9007199254740992")}, "BADSTATE", true},
		{"an exhaustion too late to be true", [][]any{set("{k}", "1"), set("{k}:exp", end), hash("{k}:own", "w", w+" 1 1 0 0 9007199254740992")}, "BADSTATE", true},
	} {
		t.Run(row.what, func(t *testing.T) {
			require.NoError(t, client.FlushDB(t.Context()).Err())
			for _, cmd := range row.put {
				require.NoError(t, client.Do(t.Context(), cmd...).Err())
			}
			before := contents(t, client)
			for op, err := range allCalls(t.Context(), s, "k") {
				if row.syncs && op != "sync" {
					continue
				}
				var failure *backend.Error
				require.ErrorAs(t, err, &failure, op)
				require.Equal(t, backend.Rejected, failure.Class)
				require.Equal(t, op, failure.Op)
				require.True(t, redis.HasErrorPrefix(failure.Err, row.prefix), "%s: %v", op, err)
				require.Equal(t, before, contents(t, client), "nothing is written")
			}
		})
	}
}

// call is one call of a store.
type call struct {
	op string
	do func(ctx context.Context) error
}

// callsOf are one call of each kind, each for one token.
func callsOf(s backend.Store, key string) []call {
	return []call{
		{"sync", func(ctx context.Context) error {
			_, err := s.Sync(ctx, backend.SyncRequest{Key: key, Client: "a", Limit: limit10, Want: 1, Need: 1})
			return err
		}},
		{"take", func(ctx context.Context) error {
			_, err := s.Take(ctx, backend.TakeRequest{Key: key, Limit: limit10, Tokens: 1})
			return err
		}},
		{"check", func(ctx context.Context) error {
			_, err := s.Check(ctx, key, limit10)
			return err
		}},
		{"settle", func(ctx context.Context) error {
			_, err := s.Settle(ctx, backend.SettleRequest{Key: key, Window: 1, Tokens: -1, Limit: 10})
			return err
		}},
		{"reset", func(ctx context.Context) error {
			_, err := s.Reset(ctx, backend.ResetRequest{Key: key, Limit: limit10})
			return err
		}},
	}
}

// allCalls makes one call of each kind and yields the errors.
func allCalls(ctx context.Context, s backend.Store, key string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for _, c := range callsOf(s, key) {
			if !yield(c.op, c.do(ctx)) {
				return
			}
		}
	}
}

// contents is all that the server holds.
func contents(t *testing.T, client *redis.Client) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, key := range client.Keys(t.Context(), "*").Val() {
		all[key] = fmt.Sprint(client.Dump(t.Context(), key).Val(), client.PExpireTime(t.Context(), key).Val())
	}
	return all
}

// TestLedgerOfOthers: a ledger without our own fields is no reason to divide by 0.
func TestLedgerOfOthers(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	w := take(t, s, "k", 1).Window
	require.NoError(t, client.HSet(t.Context(), "{k}:own", "w", int64(w)).Err())
	got, err := s.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: "a", Limit: limit10, Want: 9})
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Clients)
	require.EqualValues(t, 9, got.Grant)
}
