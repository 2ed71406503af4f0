package bench

import (
	"cmp"
	"context"
	"encoding/gob"
	"io"
	"log"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// share is what one process of shared loads has to do. It comes from its standard input, and
// after it the time to begin.
type share struct {
	Process int
	Parts   []part // one for each load and way to limit
}

// part is a share of one load by one way to limit.
type part struct {
	Way     string
	Addr    string // of its Redis
	Tokens  int64
	Window  time.Duration
	Users   int
	Traffic sim.Shape
	Late    time.Duration
	Warm    time.Duration // before what is held counts
}

// told is what a process reports of a part.
type told struct {
	Answers []answer
	Held    held
}

// held is what a process holds, by samples.
type held struct {
	Samples, Tokens int64 // tokens of all samples and users
	Most            int64 // of one user's in one process
}

func (h *held) add(o held) {
	h.Samples, h.Tokens, h.Most = h.Samples+o.Samples, h.Tokens+o.Tokens, max(h.Most, o.Most)
}

// sample notes what the limiter holds now.
func (h *held) sample(l *reservoir.Limiter) {
	h.Samples++
	for _, k := range l.Keys() {
		h.Tokens, h.Most = h.Tokens+k.Held, max(h.Most, k.Held)
	}
}

// until samples from a time on until ctx ends: some hundred times in a window, but not so often
// that it would be a load.
func (h *held) until(ctx context.Context, l *reservoir.Limiter, from time.Time, window time.Duration) {
	for wait := time.Until(from); ; wait = max(window/97, 130*time.Millisecond) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			h.sample(l)
		}
	}
}

// answer is what a request got.
type answer struct {
	Begin   int64 // in Unix nanoseconds
	Took    time.Duration
	Window  int64 // its end, Unix ms; 0 = there are no windows
	Key     int32
	Allowed bool
	Failed  bool
}

// asProcess is set for a process of shared loads.
const asProcess = "RESERVOIR_BENCH_AS_PROCESS"

// process is such a process. It reports that it is ready, and at the end the answers by part.
func process(in io.Reader, out io.Writer) error {
	ctx, from, to := context.Background(), gob.NewDecoder(in), gob.NewEncoder(out)
	var j share
	if err := from.Decode(&j); err != nil {
		return err
	}
	all := make([]opened, len(j.Parts))
	for i, p := range j.Parts {
		client := redis.NewClient(&redis.Options{Addr: p.Addr})
		defer client.Close()
		var err error
		all[i], err = sharerOf(p.Way).open(ctx, client, shared{limit: reservoir.Limit{Tokens: p.Tokens, Window: p.Window}, users: p.Users})
		if err != nil {
			return err
		}
		defer all[i].close()
	}
	var begin time.Time
	if err := cmp.Or(to.Encode(true), from.Decode(&begin)); err != nil {
		return err
	}
	go func() { // the input ends with the test
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1)
	}()
	reports := make([]told, len(all))
	var wg sync.WaitGroup
	for i, p := range j.Parts {
		wg.Go(func() {
			var err error
			if reports[i], err = p.run(ctx, all[i], j.Process, begin); err != nil {
				log.Printf("%s: %v", p.Way, err)
			}
		})
	}
	wg.Wait()
	return to.Encode(reports)
}

// run makes the requests that come to one process. The error is that of one request.
func (p part) run(ctx context.Context, o opened, process int, begin time.Time) (r told, err error) {
	traffic := p.Traffic.Traffic()
	own := slices.DeleteFunc(traffic.Requests, func(q sim.Request) bool { return int(q.Process) != process })
	begin = begin.Add(p.Late)
	sampling, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	if o.limiter != nil {
		wg.Go(func() { r.Held.until(sampling, o.limiter, begin.Add(p.Warm), p.Window) })
	}
	r.Answers, err = answers(ctx, o, traffic.Keys, own, begin)
	stop()
	wg.Wait()
	return r, err
}

// answers makes the requests, each at its time, whether or not those before have been answered.
// The error is that of one request.
func answers(ctx context.Context, o opened, keys []string, requests []sim.Request, begin time.Time) ([]answer, error) {
	all, failed := make([]answer, len(requests)), make([]error, len(requests))
	var wg sync.WaitGroup
	for i, q := range requests {
		time.Sleep(time.Until(begin.Add(q.At)))
		wg.Go(func() {
			begin := time.Now()
			allowed, window, err := o.ask(ctx, keys[q.Key])
			all[i], failed[i] = answer{begin.UnixNano(), time.Since(begin), window, q.Key, allowed, err != nil}, err
		})
	}
	wg.Wait()
	return all, cmp.Or(failed...)
}

// part returns a part of a load. Its traffic begins late, so that not all windows end at the
// same time.
func (s shared) part(way sharer, addr string, late time.Duration) part {
	return part{way.name, addr, s.limit.Tokens, s.limit.Window, s.users, s.traffic(), late, time.Duration(s.warm) * s.limit.Window}
}

// run runs loads at the same time, in the same processes.
func run(t *testing.T, loads ...shared) (groups []sharedGroup) {
	var j share
	var servers []*redistest.Server // by part
	var due []reading
	for _, s := range loads {
		require.Equal(t, loads[0].processes, s.processes)
		for _, way := range s.ways {
			i := len(j.Parts)
			server, late := redistest.Start(t), time.Duration(i)*s.limit.Window/25
			j.Parts, servers = append(j.Parts, s.part(way, server.Addr(), late)), append(servers, server)
			for w := s.warm; w <= s.warm+s.windows; w++ {
				due = append(due, reading{i, late + time.Duration(w)*s.limit.Window})
			}
		}
	}
	slices.SortFunc(due, func(a, b reading) int { return cmp.Compare(a.at, b.at) })
	var all []*running
	for j.Process = range loads[0].processes {
		all = append(all, startProcess(t, j))
	}
	for _, p := range all {
		p.receive(t, new(bool))
	}
	begin := time.Now().Add(100 * time.Millisecond)
	for _, p := range all {
		p.send(t, begin)
	}
	calls, messages := make([][]int64, len(servers)), make([][]int64, len(servers))
	for _, d := range due {
		time.Sleep(time.Until(begin.Add(d.at)))
		calls[d.part] = append(calls[d.part], servers[d.part].Calls(scripts...))
		messages[d.part] = append(messages[d.part], servers[d.part].Calls("publish"))
	}
	reports := make([]told, len(servers))
	for _, p := range all {
		var got []told
		p.receive(t, &got)
		p.end(t)
		for i := range got {
			reports[i].Answers = append(reports[i].Answers, got[i].Answers...)
			reports[i].Held.add(got[i].Held)
		}
	}
	i := 0
	for _, s := range loads {
		g := sharedGroup{shared: s}
		for _, way := range s.ways {
			require.Len(t, reports[i].Answers, len(s.traffic().Traffic().Requests), "%s: answers", way.name)
			l := s.judge(way.name, reports[i], begin.Add(j.Parts[i].Late))
			for w := range l.windows {
				l.windows[w].calls, l.windows[w].messages = calls[i][w+1]-calls[i][w], messages[i][w+1]-messages[i][w]
			}
			l.steady.calls = calls[i][s.windows] - calls[i][0]
			g.lines = append(g.lines, l)
			i++
		}
		groups = append(groups, g)
	}
	return groups
}

// reading is a time, since the beginning, at which a Redis is asked what it has counted.
type reading struct {
	part int
	at   time.Duration
}

// running is a process of a shared load, as the test sees it.
type running struct {
	*exec.Cmd
	*gob.Encoder
	*gob.Decoder
}

func startProcess(t *testing.T, j share) *running {
	path, err := os.Executable()
	require.NoError(t, err)
	p := &running{Cmd: exec.CommandContext(t.Context(), path)}
	p.Env = append(os.Environ(), asProcess+"=1", "GORACE=atexit_sleep_ms=0")
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	p.Encoder, p.Decoder = gob.NewEncoder(in), gob.NewDecoder(out)
	p.send(t, j)
	return p
}

func (p *running) send(t *testing.T, v any) { require.NoError(t, p.Encode(v)) }

func (p *running) receive(t *testing.T, v any) {
	if err := p.Decode(v); err != nil {
		p.end(t)
		require.NoError(t, err)
	}
}

func (p *running) end(t *testing.T) { require.NoError(t, p.Wait()) }
