// Package provider measures fleets under a limit of somebody else: a stub of a provider answers
// 429 with Retry-After, and halves its limit without notice.
package provider

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
	"github.com/go-reservoir/reservoir/httplimit"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	results = flag.String("results", "", "simulate two hours, and write the table into this directory")
	seed    = flag.Uint64("seed", 1, "of what is random")
)

const (
	limit     = 600 // tokens a minute
	processes = 3
	workers   = 50                    // of all processes
	apart     = 20 * time.Millisecond // from here to the provider, one way
	rtt       = time.Millisecond      // to the store and back
	hearing   = 2 * rtt               // who hears a 429 tells the store, which tells the others, who ask
)

// scenario is a provider.
type scenario struct {
	title   string
	rolling bool
	changes bool    // it halves its limit at random instants, and doubles it again
	used    float64 // bar of reservoir
}

var scenarios = []scenario{
	{"fixed windows", false, false, 0.99},
	{"fixed windows, and a limit that is halved at random", false, true, 0.99},
	{"a rolling limit", true, false, 0.93},
	{"a rolling limit that is halved at random", true, true, 0.93},
}

// span is a time in which nobody should send: all have heard of a 429, and what it named is not over.
type span struct{ from, until time.Time }

// stub is the provider, and the judge of those who call it.
type stub struct {
	scenario
	mu     sync.Mutex
	rnd    *rand.Rand
	limit  int
	change time.Time   // of the limit
	ends   time.Time   // of the fixed window
	lowest int         // limit in it
	log    []time.Time // of what was granted in it, or in the last minute
	ideal  []time.Time // that of somebody who sends whenever a rolling limit grants
	quiet  []span

	granted, possible int // requests, until the last window's end; and as many as it would have granted
	early             int // sent in a quiet time
	refused           int // 429s
	holds, underway   int // of these: when no answer had named a time to come, and not in a quiet time
}

func newStub(s scenario) *stub {
	p := &stub{scenario: s, rnd: rand.New(rand.NewPCG(*seed, 1)), limit: limit, lowest: limit}
	p.ends = time.Now().Add(time.Duration(p.rnd.Int64N(int64(time.Minute)))) // nobody knows the phase
	p.change = p.next(time.Now())
	return p
}

// next draws the next change of the limit.
func (p *stub) next(now time.Time) time.Time {
	if !p.changes {
		return now.Add(1e6 * time.Hour)
	}
	return now.Add(time.Duration(p.rnd.ExpFloat64() * float64(10*time.Minute)))
}

// pass brings the provider to now.
func (p *stub) pass(now time.Time) {
	for at := now; ; at = now {
		if p.change.Before(at) {
			at = p.change
		}
		if !p.rolling && p.ends.Before(at) {
			at = p.ends
		}
		if p.rolling {
			p.waste(at)
		}
		switch at {
		case p.change:
			p.limit = limit + limit/2 - p.limit
			p.lowest, p.change = min(p.lowest, p.limit), p.next(at)
		case p.ends: // of a window of which nobody could have more than was promised all along
			p.possible += max(len(p.log), p.lowest)
			p.granted += len(p.log)
			p.log, p.lowest, p.ends = nil, p.limit, at.Add(time.Minute)
		default:
			return
		}
	}
}

// waste counts what a rolling limit grants somebody who has always something to send.
func (p *stub) waste(now time.Time) {
	for {
		at := now
		if n := len(p.ideal) - p.limit; n >= 0 {
			at = p.ideal[n].Add(time.Minute)
		}
		if at.After(now) {
			return
		}
		p.ideal = append(p.ideal, at)[max(len(p.ideal)+1-limit, 0):]
		p.possible++
	}
}

// RoundTrip answers a request that is sent now.
func (p *stub) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := time.Now()
	time.Sleep(apart)
	a := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
	if retry := p.arrive(sent, time.Now()); retry > 0 {
		a.StatusCode = http.StatusTooManyRequests
		a.Header.Set("Retry-After", strconv.Itoa(retry))
	}
	time.Sleep(apart)
	return a, nil
}

// arrive decides, and returns Retry-After of a refusal, in seconds.
func (p *stub) arrive(sent, now time.Time) (retry int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass(now)
	p.quiet = slices.DeleteFunc(p.quiet, func(s span) bool { return now.Sub(s.until) > time.Second })
	var asked, quiet bool
	for _, s := range p.quiet {
		asked = asked || sent.Before(s.until)
		quiet = quiet || sent.Before(s.until) && sent.After(s.from)
	}
	if quiet {
		p.early++
	}
	free := p.ends
	if p.rolling {
		for len(p.log) > 0 && now.Sub(p.log[0]) >= time.Minute {
			p.log = p.log[1:]
		}
	}
	if len(p.log) < p.limit {
		p.log = append(p.log, now)
		if p.rolling {
			p.granted++
		}
		return 0
	}
	if p.rolling {
		free = p.log[len(p.log)-p.limit].Add(time.Minute)
	}
	retry = max(1, int((free.Sub(now)+time.Second-1)/time.Second))
	heard := now.Add(apart)
	named := time.Duration(retry) * time.Second
	p.quiet = append(p.quiet, span{heard.Add(hearing), heard.Add(named - named/2000)}) // clocks differ in speed by as much: not worth another call
	switch p.refused++; {
	case !asked:
		p.holds++
	case !quiet:
		p.underway++
	}
	return retry
}

// fleet is how the processes send requests.
type fleet struct {
	send  []func(ctx context.Context) error // until the provider grants it, or ctx ends; of each process
	calls func() (all, held int)            // of the store; held: those that say or hear that the limit is held
	end   func()
}

var clients = []struct {
	name string
	open func(t *testing.T, p *stub) fleet
}{
	{"reservoir", func(t *testing.T, p *stub) fleet { return openReservoir(t, p, 0) }},
	{"redis_rate, back-off", openRedisRate},
	{"back-off", func(_ *testing.T, p *stub) fleet {
		return backOff(p, func(context.Context) (time.Duration, error) { return 0, nil })
	}},
}

// openReservoir has a Transport in each process.
func openReservoir(t *testing.T, p *stub, maxHold time.Duration) (f fleet) {
	net, l := testnet.Far(rtt/2), reservoir.PerMinute(limit)
	if p.rolling {
		l = l.Rolling()
	}
	var all []*reservoir.Limiter
	for who := range processes {
		limiter, err := reservoir.New(net.Port(who, 0), l)
		require.NoError(t, err)
		all = append(all, limiter)
		c := http.Client{Transport: &httplimit.Transport{Limiter: limiter, Base: p, Retries: 1 << 30, MaxHold: maxHold}}
		f.send = append(f.send, func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://provider.example/", nil)
			require.NoError(t, err)
			_, err = c.Do(r)
			return err
		})
	}
	f.calls = func() (n, held int) {
		for _, c := range net.Calls("sync") {
			n++
			if r, ok := c.Reply.(*backend.Reply); c.Statement.Hold > 0 || ok && r.Held > 0 {
				held++
			}
		}
		return n, held
	}
	f.end = func() {
		for _, l := range all {
			require.NoError(t, l.Close(context.Background()))
		}
	}
	return f
}

// backOff sends a request again and again, as clients usually do: after as long as who refused it says, and a random time that
// grows with the tries. Ask returns for how long an own limiter refuses.
func backOff(p *stub, ask func(context.Context) (time.Duration, error)) fleet {
	rnd := rand.New(rand.NewPCG(*seed, 2))
	pause := func(ctx context.Context, after time.Duration, try int) error {
		p.mu.Lock()
		after += time.Duration(rnd.Int64N(int64(100*time.Millisecond) << min(try, 8)))
		p.mu.Unlock()
		return testnet.Pass(ctx, after)
	}
	send := func(ctx context.Context) error {
		r, _ := http.NewRequest(http.MethodGet, "http://provider.example/", nil)
		for try := 0; ; try++ {
			after, err := ask(ctx)
			if err != nil {
				return err
			}
			if after <= 0 {
				a, _ := p.RoundTrip(r)
				if a.StatusCode == http.StatusOK {
					return nil
				}
				after, _ = time.ParseDuration(a.Header.Get("Retry-After") + "s")
			}
			if err := pause(ctx, after, try); err != nil {
				return err
			}
		}
	}
	return fleet{slices.Repeat([]func(context.Context) error{send}, processes), func() (int, int) { return 0, 0 }, func() {}}
}

// server is started by TestProvider: no goroutine of a bubble may wait for connections.
var server = miniredis.NewMiniRedis()

// near is the server with the bubble's clock, rtt away.
type near struct {
	*redis.Client
	mu    sync.Mutex
	calls atomic.Int64
}

func (n *near) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	time.Sleep(rtt / 2)
	n.mu.Lock()
	server.SetTime(time.Now())
	c := n.Client.EvalSha(ctx, sha, keys, args...)
	n.mu.Unlock()
	n.calls.Add(1)
	time.Sleep(rtt / 2)
	return c
}

// openRedisRate asks redis_rate before each try.
func openRedisRate(t *testing.T, p *stub) fleet {
	server.FlushAll()
	n := &near{Client: redis.NewClient(&redis.Options{Addr: server.Addr()})}
	l := redis_rate.NewLimiter(n)
	f := backOff(p, func(ctx context.Context) (time.Duration, error) {
		r, err := l.Allow(ctx, "provider", redis_rate.PerMinute(limit))
		if err != nil {
			return 0, err
		}
		return r.RetryAfter, nil // -1 if it is allowed
	})
	f.calls = func() (int, int) { return int(n.calls.Load()), 0 }
	f.end = func() { require.NoError(t, n.Close()) }
	return f
}

// outcome is what a fleet did.
type outcome struct {
	*stub
	calls, held int
	took        []time.Duration // each request, in order
}

// run lets a fleet send as much as it may for a time.
func run(t *testing.T, s scenario, open func(*testing.T, *stub) fleet, lasts time.Duration) (o *outcome) {
	synctest.Test(t, func(t *testing.T) {
		o = &outcome{stub: newStub(s)}
		ctx, cancel := context.WithTimeout(t.Context(), lasts)
		defer cancel()
		f := open(t, o.stub)
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				time.Sleep(time.Duration(w) * time.Microsecond)
				for {
					begin := time.Now()
					if f.send[w%processes](ctx) != nil {
						return
					}
					o.mu.Lock()
					o.took = append(o.took, time.Since(begin))
					o.mu.Unlock()
				}
			})
		}
		all.Wait()
		o.pass(time.Now())
		f.end()
		time.Sleep(time.Minute) // no call is under way
		o.calls, o.held = f.calls()
		slices.Sort(o.took)
	})
	return o
}

const head = `%d workers in %d processes send as much as they may to a provider of %d requests a minute, %v away. It answers
429 with Retry-After, in whole seconds. In windows of a minute, whose phase nobody knows, or in any minute. A limit
that is halved at random is so for ten minutes on average, then as it was for ten. The clock is virtual, the store
%v away, and there and back; %v; seed %d.

reservoir             a limiter and httplimit.Transport with Retries in each process
redis_rate, back-off  redis_rate in each process; who is refused, by it or by 429, waits as long as the answer says,
                      and a random time, up to 0.1 s at first, which doubles with the tries
back-off              the same without redis_rate

used       part of what the provider would have granted. A window's limit is the lowest that it had, or what was granted;
           of a rolling limit what somebody gets who knows it at every instant
429s       in sum. paused: those that begin a pause; in flight: sent before all processes could know
early      requests sent when all processes could know, %v after the 429, and before the time that it named
calls      of the store, for 100 requests. a pause: those that say or hear of it, for each pause
p50, p99   time until a request is granted
`

func TestProvider(t *testing.T) {
	require.NoError(t, server.Start())
	defer server.Close()
	ours, peers := 20*time.Minute, 2*time.Minute
	if *results != "" {
		ours, peers = 2*time.Hour, 2*time.Hour
	}
	text := fmt.Sprintf(head, workers, processes, limit, apart, rtt, ours, *seed, hearing)
	for _, s := range scenarios {
		rows := [][]string{{s.title, "used", "429s", "paused", "in flight", "early", "calls", "a pause", "p50", "p99"}}
		for i, c := range clients {
			lasts := peers
			if i == 0 {
				lasts = ours
			}
			o := run(t, s, c.open, lasts)
			used, mark := float64(o.granted)/float64(max(o.possible, 1)), [2]string{}
			if i == 0 {
				assert.Zero(t, o.early, s.title)
				mark = [2]string{fmt.Sprintf(" (≥ %v %s)", table.Percent(s.used), judged(used >= s.used)), " (0 " + judged(o.early == 0) + ")"}
			}
			rows = append(rows, []string{
				c.name, table.Percent(used) + mark[0], table.Commas(o.refused), fmt.Sprint(o.holds), table.Commas(o.underway), table.Commas(o.early) + mark[1],
				table.Digits(100 * float64(o.calls) / float64(max(1, len(o.took)))), table.Digits(float64(o.held) / float64(max(o.holds, 1))),
				table.Duration(o.took[len(o.took)/2]), table.Duration(o.took[len(o.took)*99/100]),
			})
		}
		text += "\n" + table.Text(rows, false)
	}
	shortly := func(t *testing.T, p *stub) fleet { return openReservoir(t, p, time.Millisecond) }
	assert.Positive(t, run(t, scenarios[1], shortly, ours).early, "the judge sees who holds too shortly")
	t.Log(text)
	if *results != "" {
		require.NoError(t, os.WriteFile(filepath.Join(*results, "provider.txt"), []byte(text), 0o644))
	}
}

func judged(ok bool) string { return map[bool]string{true: "✓", false: "✗"}[ok] }
