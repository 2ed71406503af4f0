package redisstore_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
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

// seconds writes a window's end as {k}:60s:exp holds it.
func seconds(w backend.Window) string {
	if w.End%1000 == 0 {
		return fmt.Sprint(w.End / 1000)
	}
	return fmt.Sprintf("%d.%03d", w.End/1000, w.End%1000)
}

// expiries are the times to live of the counter's keys, Unix ms.
func expiries(t *testing.T, client *redis.Client, counter string) (all []int64) {
	t.Helper()
	for _, key := range []string{counter, counter + ":exp", counter + ":own"} {
		all = append(all, client.PExpireTime(t.Context(), key).Val().Milliseconds())
	}
	return all
}

// TestLayout: what lies in Redis after charges, and until when.
func TestLayout(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client, redisstore.WithPrefix("rl:"))
	ctx := t.Context()
	const counter = "rl:{user%201}:60s"

	w := take(t, s, "user 1", 1).Window
	require.Equal(t, w, take(t, s, "user 1", 2).Window)
	require.Equal(t, "3", client.Get(ctx, counter).Val())
	require.Equal(t, seconds(w), client.Get(ctx, counter+":exp").Val())
	require.EqualValues(t, 2, client.DBSize(ctx).Val(), "no ledger without accounts")
	gone := w.End + 61_000
	require.Equal(t, []int64{gone, gone}, expiries(t, client, counter)[:2], "a second charge keeps it")

	a, b := newHolder(s, "p.1", "user 1", limit10), newHolder(s, "p.2", "user 1", limit10)
	ask := func(h *holder, n, change int64) {
		t.Helper()
		_, err := h.ask(ctx, n, change)
		require.NoError(t, err)
	}
	a.next.Life = 1 << 52 // a number that Lua would print with an exponent
	ask(a, 4, 0)
	ask(b, 2, 0)
	b.next.Idle = 1
	ask(b, 0, -1)
	require.Equal(t, "8", client.Get(ctx, counter).Val())
	require.Equal(t, map[string]string{
		"head": fmt.Sprintf("%d 5 2 3 0 0+1 0 0 0 0", w.End), // 3 were charged before there was a ledger
		"p.1":  fmt.Sprintf("%d 4503599627370496 1 4", w.End), "p.2": fmt.Sprintf("%d 1 2 1+1", w.End),
	}, client.HGetAll(ctx, counter+":own").Val())
	require.Equal(t, []int64{gone, gone, gone}, expiries(t, client, counter))

	b.next.Leaving, b.next.Idle = true, 0
	ask(b, 0, 2)
	require.Equal(t, fmt.Sprintf("~%d 1 3 3", w.End), client.HGet(ctx, counter+":own", "p.2").Val())
	require.Regexp(t, fmt.Sprintf(`^%d 7 1 3 0 \d{13}$`, w.End), client.HGet(ctx, counter+":own", "head").Val(), "when the limit was used up")

	next, err := s.Reset(ctx, "user 1", limit10)
	require.NoError(t, err)
	require.Equal(t, w, next)
	ask(a, 1, 0)
	require.Positive(t, a.next.Window.Gen)
	require.Equal(t, fmt.Sprintf("%d.%d 4503599627370496 2 1", a.next.Window.End, a.next.Window.Gen), client.HGet(ctx, counter+":own", "p.1").Val())
}

// TestInspectIsLiteral: a key of any bytes is no pattern, neither is a prefix.
func TestInspectIsLiteral(t *testing.T) {
	s := redisstore.New(redistest.Start(t).Client(), redisstore.WithPrefix("r*l:"))
	for _, key := range []string{`user [4]?\2*`, `user [4]?\2*x`, `user [4]?\2`, "user 4a2bc"} {
		take(t, s, key, 1)
	}
	all, err := s.Inspect(t.Context(), `user [4]?\2*`)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.EqualValues(t, 1, all[0].Used)
}

// TestInspectBreaksOff: a walk over the keys that breaks off is an error, and no shorter list.
func TestInspectBreaksOff(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	take(t, s, "k", 1)
	client.AddHook(new(breaksOff))
	all, err := s.Inspect(t.Context(), "k")
	require.ErrorContains(t, err, "broken off")
	require.Empty(t, all)
}

// breaksOff lets no SCAN but the first come through, and makes that one say that there are more keys.
type breaksOff struct{ scans int }

func (*breaksOff) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *breaksOff) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		scan, ok := cmd.(*redis.ScanCmd)
		if !ok {
			return next(ctx, cmd)
		}
		if b.scans++; b.scans > 1 {
			err := errors.New("broken off")
			scan.SetErr(err)
			return err
		}
		err := next(ctx, cmd)
		page, _ := scan.Val()
		scan.SetVal(page, 1)
		return err
	}
}

func (*breaksOff) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestCountBelowZero: another program's refund went too far. That is not a gift.
func TestCountBelowZero(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	for _, key := range []string{"a", "b", "c"} {
		take(t, s, key, 1)
		require.NoError(t, client.DecrBy(t.Context(), "{"+key+"}:60s", 5).Err())
		require.EqualValues(t, 10, remaining(t, s, key))
		in, err := s.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.NotZero(t, in[0].Window)
		require.Zero(t, in[0].Used)
	}
	require.EqualValues(t, 8, take(t, s, "a", 2).Remaining)
	b := newHolder(s, "x", "b", limit10)
	r, err := b.ask(t.Context(), 10, 0)
	require.NoError(t, err)
	require.EqualValues(t, 10, r.Grant)
	require.Zero(t, r.Remaining)
	require.NoError(t, client.DecrBy(t.Context(), "{b}:60s", 8).Err())
	r, err = b.ask(t.Context(), 0, -5)
	require.NoError(t, err)
	require.EqualValues(t, 5, r.Remaining, "the count is not less than what accounts were charged")
}

// TestCleansUp: Redis deletes what nobody asks for any more.
func TestCleansUp(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	short := backend.Limit{Tokens: 10, Window: time.Millisecond}
	_, err := charge(t.Context(), s, "k", short, 1)
	require.NoError(t, err)
	_, err = newHolder(s, "a", "k2", short).ask(t.Context(), 1, 0)
	require.NoError(t, err)
	_, err = s.Reset(t.Context(), "k3", short)
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
	require.Equal(t, []int64{3, end}, theirs(rate, "{them}:60s", 3, end, clock(0)))
	for _, r := range []struct{ n, remaining int64 }{{4, 3}, {4, 3}} {
		got, err := charge(at(time.Second), s, "them", limit10, r.n)
		require.NoError(t, err)
		require.EqualValues(t, end*1000, got.Window.End)
		require.Equal(t, r.remaining, got.Remaining)
	}
	a := newHolder(s, "a", "them", limit10)
	r, err := a.ask(at(time.Second), 2, 0)
	require.NoError(t, err)
	require.Equal(t, backend.Window{End: end * 1000}, r.Window)
	require.EqualValues(t, 1, r.Remaining)
	require.Equal(t, []int64{9, end}, theirs(check, "{them}:60s", clock(time.Second)))
	require.Equal(t, []int64{14, end}, theirs(rate, "{them}:60s", 5, end, clock(2*time.Second)), "they know no limit")
	state, err := s.Check(at(2*time.Second), "them", limit10)
	require.NoError(t, err)
	require.Zero(t, state.Remaining)

	// We open it, and they charge to it.
	got, err := charge(at(0), s, "us", limit10, 2)
	require.NoError(t, err)
	ours := got.Window.End / 1000 // their reply is in whole seconds
	require.Equal(t, []int64{2, ours}, theirs(check, "{us}:60s", clock(time.Second)))
	require.Equal(t, []int64{7, ours}, theirs(rate, "{us}:60s", 5, end+100, clock(time.Second)))
	state, err = s.Check(at(time.Second), "us", limit10)
	require.NoError(t, err)
	require.Equal(t, backend.State{Window: got.Window, Left: 59 * time.Second, Remaining: 3}, state)

	// It ends for us at the end, and for them no later than a second after.
	require.Equal(t, []int64{7, ours}, theirs(check, "{us}:60s", clock(60*time.Second)))
	require.Equal(t, []int64{0, 0}, theirs(check, "{us}:60s", clock(60*time.Second+time.Millisecond)))
	next := now.Unix() + 120
	require.Equal(t, []int64{1, next}, theirs(rate, "{us}:60s", 1, next, clock(60*time.Second+time.Millisecond)))

	// They opened the next one over our ledger, which is void.
	require.Equal(t, []int64{1, next}, theirs(rate, "{them}:60s", 1, next, clock(61*time.Second)))
	a.next.Runs = false
	r, err = a.ask(at(61*time.Second), 4, 0)
	require.NoError(t, err)
	require.EqualValues(t, next*1000, r.Window.End)
	require.EqualValues(t, 4, r.Mine)
	require.EqualValues(t, 5, r.Remaining)

	// Whoever makes a count anew gives it no time to live; we do.
	lasts := func(key string) time.Duration { return client.PTTL(t.Context(), key).Val() }
	require.NoError(t, client.Del(t.Context(), "{them}:60s").Err())
	theirs(rate, "{them}:60s", 1, next, clock(61*time.Second))
	require.Negative(t, lasts("{them}:60s"))
	_, err = a.ask(at(61*time.Second), 0, 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, lasts("{them}:60s"), lasts("{them}:60s:exp")-time.Second)

	// After a reset they open a window, and we charge to it.
	void, err := s.Reset(at(62*time.Second), "them", limit10)
	require.NoError(t, err)
	require.Equal(t, r.Window, void)
	require.Equal(t, []int64{0, 0}, theirs(check, "{them}:60s", clock(62*time.Second)))
	require.Equal(t, []int64{2, next + 5}, theirs(rate, "{them}:60s", 2, next+5, clock(62*time.Second)))
	r, err = a.ask(at(62*time.Second), 3, 0)
	require.NoError(t, err)
	require.Greater(t, r.Window.Gen, void.Gen)
	require.EqualValues(t, 5, r.Used)
}

// TestGarbage: what other programs left in our keys is an operator's matter.
func TestGarbage(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	end := fmt.Sprint(time.Now().Unix() + 60)
	w := end + "000"
	const count, exp, own = "{k}:60s", "{k}:60s:exp", "{k}:60s:own"
	set := func(name, value string) []any { return []any{"set", name, value} }
	hash := func(name string, pairs ...any) []any { return append([]any{"hset", name}, pairs...) }
	ledger := func(pairs ...any) [][]any { return [][]any{set(count, "1"), set(exp, end), hash(own, pairs...)} }
	all, head, field := []string{"sync", "charge", "check", "reset"}, []string{"sync", "charge", "check", "reset"}, []string{"sync"}
	for _, row := range []struct {
		what   string
		put    [][]any
		prefix string
		by     []string // who looks at it
	}{
		{"a word for a count", [][]any{set(count, "many"), set(exp, end)}, "BADSTATE", all[:3]},
		{"half a token", [][]any{set(count, "1.5"), set(exp, end)}, "BADSTATE", all[:3]},
		{"not a number", [][]any{set(count, "nan"), set(exp, end)}, "BADSTATE", all[:3]},
		{"infinitely many", [][]any{set(count, "inf"), set(exp, end)}, "BADSTATE", all[:3]},
		{"more than can be counted", [][]any{set(count, "9007199254740992"), set(exp, end)}, "BADSTATE", all[:3]},
		{"nothing for a count", [][]any{set(count, ""), set(exp, end)}, "BADSTATE", all[:3]},
		{"a word for an end", [][]any{set(count, "1"), set(exp, "soon")}, "BADSTATE", all},
		{"no end", [][]any{set(count, "1"), set(exp, "inf")}, "BADSTATE", all},
		{"not a time", [][]any{set(count, "1"), set(exp, "nan")}, "BADSTATE", all},
		{"an end before time began", [][]any{set(count, "1"), set(exp, "-1")}, "BADSTATE", all},
		{"a hash for a count", [][]any{hash(count, "a", "1"), set(exp, end)}, "WRONGTYPE", []string{"check"}},
		{"a hash for an end", [][]any{set(count, "1"), hash(exp, "a", "1")}, "WRONGTYPE", []string{"check", "reset"}},
		{"a string for a ledger", [][]any{set(count, "1"), set(exp, end), set(own, "a")}, "WRONGTYPE", all},
		{"a string for a ledger, without a window", [][]any{set(own, "a")}, "WRONGTYPE", all},
		{"a word for an account", ledger("head", w+" 1 1", "a.1", "much"), "BADSTATE", field},
		{"an account of one number", ledger("head", w+" 1 1", "a.1", "5"), "BADSTATE", field},
		{"an account of five numbers", ledger("head", w+" 1 1", "a.1", w+" 1 0 3 2"), "BADSTATE", field},
		{"an account below 0", ledger("head", w+" 1 1", "a.1", w+" 1 0 -3"), "BADSTATE", field},
		{"an account too large", ledger("head", w+" 1 1", "a.1", w+" 1 0 9007199254740992"), "BADSTATE", field},
		{"too much idle", ledger("head", w+" 1 1", "a.1", w+" 1 0 1+9007199254740992"), "BADSTATE", field},
		{"a word for a window", ledger("head", "soon 1 1"), "BADSTATE", head},
		{"a word for a generation", ledger("head", w+".one 1 1"), "BADSTATE", head},
		{"a window too late to be true", ledger("head", "9007199254740992 1 1"), "BADSTATE", head[:2]},
		{"a word for the sum", ledger("head", w+" all 1"), "BADSTATE", head},
		{"a word for the clients", ledger("head", w+" 1 two"), "BADSTATE", head[:2]},
		{"too many clients", ledger("head", w+" 1 9007199254740992"), "BADSTATE", head[:2]},
		{"two rare numbers", ledger("head", w+" 1 1 2 3"), "BADSTATE", field},
		{"four rare numbers", ledger("head", w+" 1 1 2 3 4 5"), "BADSTATE", field},
		{"more claimable than can be counted", ledger("head", w+" 1 1 9007199254740992 0 0"), "BADSTATE", field},
		{"an exhaustion too late to be true", ledger("head", w+" 1 1 0 0 9007199254740992"), "BADSTATE", field},
		{"three numbers of calls", ledger("head", w+" 1 1+1 2 3"), "BADSTATE", field},
		{"too many calls", ledger("head", w+" 1 1+1 9007199254740992 1 1 1"), "BADSTATE", field},
	} {
		t.Run(row.what, func(t *testing.T) {
			calls := callsOf(s, "k")[:len(all)]
			for i, name := range all {
				require.NoError(t, client.FlushDB(t.Context()).Err())
				for _, cmd := range row.put {
					require.NoError(t, client.Do(t.Context(), cmd...).Err())
				}
				before := contents(t, client)
				err := calls[i].do(t.Context())
				looks := false
				for _, who := range row.by {
					looks = looks || who == name
				}
				if !looks {
					continue
				}
				var failure *backend.Error
				require.ErrorAs(t, err, &failure, name)
				require.Equal(t, backend.Rejected, failure.Class)
				require.True(t, failure.KeyOnly)
				require.Equal(t, calls[i].op, failure.Op)
				require.True(t, redis.HasErrorPrefix(failure.Err, row.prefix), "%s: %v", name, err)
				require.Equal(t, before, contents(t, client), "nothing is written")
			}
		})
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
