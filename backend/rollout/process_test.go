package rollout_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/backend/rollout"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// childEnv holds the orders of a process of TestProcesses, as JSON.
const childEnv = "RESERVOIR_ROLLOUT_CHILD"

type orders struct {
	Old, New, Mode, Prefix string
	Keys, Workers          int
	Limit                  reservoir.Limit
}

// account is what a process has done: tokens by key and end of the window in
// Unix milliseconds.
type account struct {
	Admitted map[string]map[int64]int64
	Errors   []string
	Requests int64
}

// child calls a limiter until its input ends, sets the range that each line of it
// says, and prints "ok" for each, and its account at last.
func child() {
	var o orders
	must(json.Unmarshal([]byte(os.Getenv(childEnv)), &o))
	old, new := redis.NewClient(&redis.Options{Addr: o.Old}), redis.NewClient(&redis.Options{Addr: o.New})
	store, err := rollout.New(redisstore.New(old), redisstore.New(new), 0, 0)
	must(err)
	limiter, err := reservoir.New(store, o.Limit, modes[o.Mode], reservoir.WithFetchTimeout(5*time.Second))
	must(err)
	var stop atomic.Bool
	var wg sync.WaitGroup
	accounts := make([]account, o.Workers)
	for i := range accounts {
		accounts[i].Admitted = make(map[string]map[int64]int64)
		wg.Go(func() { accounts[i].work(limiter, o, i, &stop) })
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var low, high float64
		_, err := fmt.Sscan(lines.Text(), &low, &high)
		must(err)
		must(store.SetPercent(low, high))
		fmt.Println("ok")
	}
	stop.Store(true)
	wg.Wait()
	must(limiter.Close(context.Background()))
	for i := range accounts {
		must(json.NewEncoder(os.Stdout).Encode(accounts[i]))
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// work is one worker's requests: half of the limit in each window on each key.
func (a *account) work(l *reservoir.Limiter, o orders, i int, stop *atomic.Bool) {
	ticks := time.NewTicker(o.Limit.Window * time.Duration(2*o.Workers) / time.Duration(o.Limit.Tokens))
	defer ticks.Stop()
	for !stop.Load() {
		for k := range o.Keys {
			key := fmt.Sprint(o.Prefix, k)
			r, err := l.Allow(context.Background(), key)
			a.Requests++
			switch {
			case err != nil:
				a.Errors = append(a.Errors, err.Error())
			case r.Allowed:
				if a.Admitted[key] == nil {
					a.Admitted[key] = make(map[int64]int64)
				}
				a.Admitted[key][r.Reset.UnixMilli()]++
			}
		}
		<-ticks.C
	}
}

// running is a process that TestProcesses has started.
type running struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, o orders) *running {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &running{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	p.out.Buffer(nil, 1<<20)
	return p
}

func (p *running) set(t *testing.T, low, high float64) {
	t.Helper()
	_, err := fmt.Fprintln(p.in, low, high)
	require.NoError(t, err)
	require.True(t, p.out.Scan())
	require.Equal(t, "ok", p.out.Text())
}

// end adds the process's account to y.
func (p *running) end(t *testing.T, y *tally) (requests int64) {
	t.Helper()
	require.NoError(t, p.in.Close())
	for p.out.Scan() {
		var a account
		require.NoError(t, json.Unmarshal(p.out.Bytes(), &a))
		require.Empty(t, a.Errors)
		requests += a.Requests
		for key, ends := range a.Admitted {
			for end, n := range ends {
				y.note(key, reservoir.Result{Allowed: true, Reset: time.UnixMilli(end)}, n)
			}
		}
	}
	require.NoError(t, p.cmd.Wait())
	return requests
}

// From 0 to 50 to 100 % and back on real servers, under twice the demand from four
// processes that are told of each step one after the other.
func TestProcesses(t *testing.T) {
	const processes, keys = 4, 4
	old, new := redistest.Start(t), redistest.Start(t)
	// As much as a busy machine can do: direct requests are calls.
	for mode, l := range map[string]reservoir.Limit{
		"adaptive": {Tokens: 500, Window: 500 * time.Millisecond}, "direct": {Tokens: 75, Window: 500 * time.Millisecond},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var all []*running
			for range processes {
				all = append(all, start(t, orders{
					Old: old.Addr(), New: new.Addr(), Mode: mode, Prefix: mode, Keys: keys, Workers: 8, Limit: l,
				}))
			}
			for _, step := range there {
				for _, p := range all {
					time.Sleep(l.Window / 5) // the time between one process and the next, no synchronisation
					p.set(t, step[0], step[1])
				}
				if step[0] == step[1] {
					time.Sleep(5 * l.Window / 2) // for the keys to be in one store for a while
				}
			}
			var y tally
			var requests int64
			for _, p := range all {
				requests += p.end(t, &y)
			}
			windows, whole, most := 0, y.judge(t, l, l.Window/4, 0), int64(0)
			for k := range keys {
				_, sums := y.windows(fmt.Sprint(mode, k), l.Window)
				windows += len(sums)
				for _, sum := range sums {
					most = max(most, sum)
				}
			}
			t.Logf("%d windows, %d of them whole, the fullest %d of %d; %d requests", windows, whole, most, l.Tokens, requests)
			require.GreaterOrEqual(t, windows, 8*keys)
			require.GreaterOrEqual(t, whole, windows/3, "demand was above the limit")
		})
	}
}
