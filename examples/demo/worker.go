package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

// report is what a worker has done since its last report. An answer counts when it is
// reported, so nothing that a killed process admitted is missing.
type report struct {
	Requests int64           `json:"requests"`
	Refused  int64           `json:"refused"`
	Failed   int64           `json:"failed"`   // got an error: the default failure policy, while Redis is away
	Admitted map[int64]int64 `json:"admitted"` // by the end of the window, Unix ms
	Error    string          `json:"error"`    // of a failed request

	Calls  int64 `json:"calls"`  // to Redis, since the start
	Waited int64 `json:"waited"` // requests that waited for Redis, since the start
	Held   int64 `json:"held"`   // tokens in memory now
}

// order tells a worker what to do. A worker ends when no more order can come.
type order struct {
	Rate float64 `json:"rate"` // requests a second
}

const reportEvery = 10 * time.Millisecond

// worker is the worker's own side.
type worker struct {
	limiter *reservoir.Limiter
	mu      sync.Mutex
	report  report
}

// work makes requests as orders say, each in its goroutine, as a server's are.
func work(redis, length string, orders io.Reader, reports io.Writer) error {
	signal.Ignore(os.Interrupt) // Ctrl-C reaches every process of a terminal; the demo ends its workers
	window, err := time.ParseDuration(length)
	if err != nil {
		return err
	}
	store, err := redisstore.Open("redis://" + redis)
	if err != nil {
		return err
	}
	defer store.Close()
	limiter, err := reservoir.New(store, reservoir.Limit{Tokens: limit, Window: window},
		reservoir.WithFetchTimeout(time.Second)) // a busy machine is no outage
	if err != nil {
		return err
	}
	rates := make(chan float64)
	go func() {
		defer close(rates)
		for in := json.NewDecoder(orders); ; {
			var o order
			if in.Decode(&o) != nil {
				return
			}
			rates <- o.Rate
		}
	}()
	w := &worker{limiter: limiter, report: report{Admitted: map[int64]int64{}}}
	err = w.drive(rates, json.NewEncoder(reports))
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = limiter.Close(ctx) // Redis may be away
	return err
}

func (w *worker) drive(rates <-chan float64, to *json.Encoder) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	rate, since, made := 0.0, time.Now(), 0.0
	for {
		select {
		case r, more := <-rates:
			if !more {
				calls.Wait()
				return w.tell(to)
			}
			rate, since, made = r, time.Now(), 0
		case <-tick.C:
			for due := rate * time.Since(since).Seconds(); made < due; made++ {
				calls.Go(w.request)
			}
			if err := w.tell(to); err != nil {
				return nil // the demo is gone
			}
		}
	}
}

func (w *worker) request() {
	r, err := w.limiter.Allow(context.Background(), "everyone")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Requests++
	switch {
	case err != nil:
		w.report.Failed++
		w.report.Error = err.Error()
	case r.Allowed:
		w.report.Admitted[r.Reset.UnixMilli()]++
	default:
		w.report.Refused++
	}
}

func (w *worker) tell(to *json.Encoder) error {
	w.mu.Lock()
	r := w.report
	w.report = report{Admitted: map[int64]int64{}}
	w.mu.Unlock()
	s := w.limiter.Stats()
	r.Calls, r.Waited, r.Held = s.StoreCalls, s.Waited, s.Held
	return to.Encode(r)
}

// process is the demo's side of a worker.
type process struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
}

// said is a report of a process or, if ended, its last words: how it ended.
type said struct {
	from  int
	ended string
	report
}

// startWorker starts process n. Its reports arrive on the channel, and then its end.
func startWorker(n int, redis string, window time.Duration, to chan<- said) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, asWorker, redis, window.String())}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.orders, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		for in := json.NewDecoder(bufio.NewReader(out)); ; {
			var r report
			if in.Decode(&r) != nil {
				break // at the end, or in the middle of the words of a killed process
			}
			to <- said{from: n, report: r}
		}
		_ = p.cmd.Wait() // the state says it all
		to <- said{from: n, ended: p.cmd.ProcessState.String()}
	}()
	return p, nil
}

func (p *process) order(rate float64) error { return json.NewEncoder(p.orders).Encode(order{rate}) }
