package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// shared is a load that many people have: some processes share limits which are reached. The
// processes are real ones, of this test's own program. All sharers run at the same time, each
// over a Redis of its own. In each process a sharer has connections of its own. It gets the
// same traffic as the others, a part of a window later than the one before it.
type shared struct {
	name, title   string          // the title with the number of processes
	limit         reservoir.Limit // of each user
	users         int
	processes     int
	warm, windows int     // that do not count, and that do
	demand        float64 // of each user, in limits a window
	ways          []sharer
}

const overload = 1.5 // the demand of the tables beside peers

func shares() []shared {
	perUser := reservoir.PerMinute(300)
	return []shared{
		{"global", "%d processes", reservoir.PerMinute(60_000), 1, 8, 1, 5, overload, sharers},
		{"users", "each of 40 users, %d processes", perUser, 40, 20, 1, 5, overload, sharers},
	}
}

// scaled returns s with shorter windows and as many tokens less, but at least 5.
func (s shared) scaled(window time.Duration, windows, processes int) shared {
	s.limit.Tokens = max(s.limit.Tokens*int64(window)/int64(s.limit.Window), 5)
	s.limit.Window, s.windows, s.processes = window, windows, min(s.processes, processes)
	return s
}

// traffic describes the requests of all processes. They end after the last window that counts,
// because a window opens at the first request after the one before.
func (s shared) traffic() sim.Shape {
	return sim.Shape{
		Rate: s.demand * float64(s.limit.Tokens) * float64(s.users) / s.limit.Window.Seconds(), Keys: s.users, Tokens: 1,
		Processes: s.processes, Length: time.Duration(s.warm+s.windows)*s.limit.Window + s.limit.Window/10, Seed: 1,
	}
}

// sharer is a way to limit.
type sharer struct {
	name string
	open func(ctx context.Context, c *redis.Client, s shared) (opened, error)
}

// opened is a way to limit in one process.
type opened struct {
	// ask asks for a token, and returns the answer and the end of the window that it is about, Unix ms; 0 = there is none.
	ask     func(ctx context.Context, key string) (bool, int64, error)
	limiter *reservoir.Limiter // nil if it is not ours
}

func (o opened) close() error {
	if o.limiter == nil {
		return nil
	}
	return o.limiter.Close(context.Background())
}

var (
	ourSharer     = sharer{"reservoir", openShared()}
	callingSharer = sharer{"redis_rate", openSharedRate}
	sharers       = []sharer{
		ourSharer,
		{"reservoir, direct", openShared(reservoir.WithDirect())},
		{"Rockset's rule, L/1000", openSharedRockset(func(l int64) (int64, int64) { return max(l/1000, 1), 0 })},
		{"Rockset's ladder, to L/100", openSharedRockset(func(l int64) (int64, int64) { return 1, max(l/100, 1) })},
		callingSharer,
	}
)

// sharerOf returns the way of that name.
func sharerOf(name string) sharer {
	return sharers[slices.IndexFunc(sharers, func(k sharer) bool { return k.name == name })]
}

func openShared(opts ...reservoir.Option) func(context.Context, *redis.Client, shared) (opened, error) {
	return func(_ context.Context, c *redis.Client, s shared) (opened, error) {
		return asLimiter(openLimiter(redisstore.New(c), s.limit, opts...)), nil
	}
}

func asLimiter(l *reservoir.Limiter) opened {
	return opened{func(ctx context.Context, key string) (bool, int64, error) {
		r, err := l.Allow(ctx, key)
		return r.Allowed, r.Reset.UnixMilli(), err
	}, l}
}

func openSharedRockset(sizes func(limit int64) (least, most int64)) func(context.Context, *redis.Client, shared) (opened, error) {
	return func(_ context.Context, c *redis.Client, s shared) (opened, error) {
		r := &Rockset{Store: redisstore.New(c), Limit: backend.Limit(s.limit)}
		r.Batch, r.Most = sizes(s.limit.Tokens)
		return opened{r.AllowIn, nil}, nil
	}
}

// openSharedRate first empties the buckets, whose burst is otherwise admitted beside the limit
// of the first windows. One process succeeds with that.
func openSharedRate(ctx context.Context, c *redis.Client, s shared) (opened, error) {
	l := redis_rate.NewLimiter(c)
	limit := redis_rate.Limit{Rate: int(s.limit.Tokens), Burst: int(s.limit.Tokens), Period: s.limit.Window}
	for _, key := range sim.Keys(s.users) {
		if _, err := l.AllowN(ctx, key, limit, limit.Burst); err != nil {
			return opened{}, err
		}
	}
	return opened{func(ctx context.Context, key string) (bool, int64, error) {
		r, err := l.Allow(ctx, key, limit)
		return err == nil && r.Allowed > 0, 0, err
	}, nil}, nil
}

// sharedGroup is a shared load that was run.
type sharedGroup struct {
	shared
	lines []sharedLine
}

// sharedLine is what came of one sharer, by the windows that count.
type sharedLine struct {
	name     string
	windows  []sharedWindow
	windowed bool    // its answers name their windows
	worst    float64 // admitted of the limit, by the user's window in which it was least
	over     int64   // tokens above the limit, in the user's window in which it was most
	steady   steady
}

// sharedWindow is a window of all users.
type sharedWindow struct {
	tokens, requests, admitted, early, failed, calls, messages int64 // tokens of all users' limits; requests without those that failed
	latency                                                    sim.Latency
}

// judge counts the answers by window: by the window of the answer or, if the sharer has none,
// by its time.
func (s shared) judge(name string, r told, begin time.Time) sharedLine {
	l := sharedLine{name: name, windows: make([]sharedWindow, s.windows), worst: 1, steady: s.steadyOf(r, begin)}
	for i := range l.windows {
		l.windows[i].tokens, l.windows[i].latency = int64(s.users)*s.limit.Tokens, sim.NewLatency()
	}
	byUser := make([]map[int64][]answer, s.users)
	for _, a := range r.Answers {
		if byUser[a.Key] == nil {
			byUser[a.Key] = map[int64][]answer{}
		}
		window := a.Window
		if a.Failed || window == 0 {
			window = (a.Begin - begin.UnixNano()) / int64(s.limit.Window)
		}
		if a.Failed {
			if i := int(window) - s.warm; 0 <= i && i < s.windows {
				l.windows[i].failed++
			}
			continue
		}
		byUser[a.Key][window] = append(byUser[a.Key][window], a)
	}
	for _, windows := range byUser {
		for i, id := range inOrder(windows) {
			admitted, early := tally(windows[id], s.limit.Tokens)
			if l.windowed = windows[id][0].Window != 0; l.windowed {
				l.over = max(l.over, admitted-s.limit.Tokens)
			}
			if i -= s.warm; i < 0 || i >= s.windows {
				continue
			}
			w := &l.windows[i]
			w.requests, w.admitted, w.early = w.requests+int64(len(windows[id])), w.admitted+admitted, w.early+early
			l.worst = min(l.worst, sim.Ratio(admitted, s.limit.Tokens))
			for _, a := range windows[id] {
				w.latency.Note(a.Took)
			}
		}
	}
	return l
}

// inOrder returns the keys of windows.
func inOrder(windows map[int64][]answer) (ids []int64) {
	for id := range windows {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// tally returns how many requests of a window were admitted, and how many were refused too
// early: those that an exact count would have admitted. When one of them was refused, fewer
// than the limit had begun that were admitted, or refused too early before it.
func tally(window []answer, limit int64) (admitted, early int64) {
	slices.SortFunc(window, func(a, b answer) int { return cmp.Compare(a.counts(), b.counts()) })
	for _, a := range window {
		switch {
		case a.Allowed:
			admitted++
		case a.Window != 0 && admitted+early < limit:
			early++
		}
	}
	return admitted, early
}

// counts is the time at which the answer is counted: an admitted request at its beginning, and
// a refused one at its end, because nobody knows when in between Redis has counted it.
func (a answer) counts() int64 {
	if a.Allowed {
		return a.Begin
	}
	return a.Begin + int64(a.Took)
}

func TestTally(t *testing.T) {
	at := func(begin int64, took time.Duration, allowed bool) answer {
		return answer{Begin: begin, Took: took, Allowed: allowed, Window: 1}
	}
	for _, c := range []struct {
		window          []answer
		admitted, early int64
	}{
		{[]answer{at(1, 9, true), at(2, 1, false), at(3, 1, true), at(5, 1, false)}, 2, 1}, // one token is left at 3, and none at 6
		{[]answer{at(1, 9, true), at(2, 9, false), at(3, 1, true)}, 2, 0},                  // counted after the one that began at 3
		{[]answer{at(1, 1, true), at(2, 1, false), at(3, 1, false)}, 1, 1},                 // an exact count would have admitted one of them
	} {
		admitted, early := tally(c.window, 2)
		require.Equal(t, c.admitted, admitted)
		require.Equal(t, c.early, early)
	}
}

const sharedNotes = `
Processes share limits and ask for %g times as much. All ways to limit run at once, each with a Redis of its own.
Each figure is the median of the windows after the first, and then the lowest or highest of them.

calls      scripts that Redis runs for each request, also for those that are refused
messages   that these scripts publish, for each request
too early  requests that were refused and that an exact count would have admitted; redis_rate has no windows
admitted   of the limit, by all users; worst is the window of the user who got least
`

// table formats the lines.
func (s sharedGroup) table() string {
	rows := [][]string{{"", "calls", "lowest", "highest", "messages", "too early", "highest", "admitted", "lowest", "worst", "p50", "p99.9", "lowest", "highest", "failed"}}
	for _, l := range s.lines {
		calls, early, admitted, slow := l.calls(), l.early(), l.admitted(), l.took(0.999)
		rows = append(rows, []string{l.name,
			table.Percent(calls.median()), table.Percent(calls.lowest()), table.Percent(calls.highest()), table.Percent(l.messages().median()),
			l.share(early.median()), l.share(early.highest()),
			table.Percent(admitted.median()), table.Percent(admitted.lowest()), table.Percent(l.worst),
			table.Duration(duration(l.took(0.5).median())),
			table.Duration(duration(slow.median())), table.Duration(duration(slow.lowest())), table.Duration(duration(slow.highest())), table.Percent(l.failed().highest()),
		})
	}
	return fmt.Sprintf("\nRedis, %v, %d windows (%s)\n%s", s, s.windows, s.name, table.Text(rows, false))
}

// String is the load in words.
func (s shared) String() string {
	limit := table.Commas(s.limit.Tokens) + " a minute"
	if s.limit.Window != time.Minute {
		limit = fmt.Sprintf("%s in %v", table.Commas(s.limit.Tokens), s.limit.Window)
	}
	return limit + ", " + fmt.Sprintf(s.title, s.processes)
}

// share writes a share of requests that were refused too early, if that is known.
func (l *sharedLine) share(early float64) string {
	if !l.windowed {
		return "–"
	}
	return table.Percent(early)
}

func (l *sharedLine) calls() spread {
	return spreadOf(l.windows, func(w *sharedWindow) float64 { return sim.Ratio(w.calls, w.requests) })
}

func (l *sharedLine) failed() spread {
	return spreadOf(l.windows, func(w *sharedWindow) float64 { return sim.Ratio(w.failed, w.requests+w.failed) })
}

func (l *sharedLine) messages() spread {
	return spreadOf(l.windows, func(w *sharedWindow) float64 { return sim.Ratio(w.messages, w.requests) })
}

func (l *sharedLine) early() spread {
	return spreadOf(l.windows, func(w *sharedWindow) float64 { return sim.Ratio(w.early, w.requests) })
}

func (l *sharedLine) admitted() spread {
	return spreadOf(l.windows, func(w *sharedWindow) float64 { return sim.Ratio(w.admitted, w.tokens) })
}

// took is a quantile of the time to answer, in seconds.
func (l *sharedLine) took(q float64) spread {
	return spreadOf(l.windows, func(w *sharedWindow) float64 { return w.latency.Quantile(q).Seconds() })
}
