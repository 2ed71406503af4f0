package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// drive runs three processes and their server through a plan, counts what they report, and
// shows it. One goroutine does all of that.
type drive struct {
	plan
	server *server
	out    io.Writer
	record

	start   time.Time
	workers [processes]*process // nil when ended
	heard   chan said
	done    [processes]counts // so far
	sampled [processes]counts // at the last sample
	windows map[int64]int64   // tokens admitted, by the end of the window, Unix ms
	shown   counts            // at the end of the last row
	open    int64             // the window of the next row; 0 while there is none
	away    counts            // when Redis was killed
	served  [processes]bool   // since it was back
}

// record is what happened. All times are in seconds since the first request.
type record struct {
	Server  string   `json:"server"`
	Seconds float64  `json:"seconds"` // fewer than planned if the demo was stopped
	Window  float64  `json:"window_seconds"`
	Limit   int64    `json:"limit"` // of a window
	Samples []sample `json:"samples"`
	Total   counts   `json:"total"`
	Most    int64    `json:"most_admitted_in_a_window"`
	Counted int64    `json:"redis_calls_by_redis"` // its own count; 0 if it has none

	KilledAt   float64 `json:"killed_at,omitempty"`        // when process 2 was killed
	Killed     string  `json:"killed,omitempty"`           // how it ended, by the operating system
	Held       int64   `json:"killed_held"`                // tokens in its memory
	DownAt     float64 `json:"down_at,omitempty"`          // when Redis was killed
	UpAt       float64 `json:"up_at,omitempty"`            // when it answered again
	AdmittedAt float64 `json:"admitted_at,omitempty"`      // when each process admitted requests again
	Away       counts  `json:"away"`                       // what was done between DownAt and AdmittedAt
	Error      string  `json:"unexpected_error,omitempty"` // the first one at another time
}

// sample is what each process did since the last sample, a second before.
type sample struct {
	At        float64           `json:"at"`
	Processes [processes]counts `json:"processes"`
}

// counts are those of one process, or of all.
type counts struct {
	Requests int64 `json:"requests"`
	Admitted int64 `json:"admitted"`
	Refused  int64 `json:"refused"`
	Failed   int64 `json:"failed"` // got an error
	Waited   int64 `json:"waited"` // for Redis
	Calls    int64 `json:"redis_calls"`
}

func (c counts) minus(o counts) counts {
	return counts{c.Requests - o.Requests, c.Admitted - o.Admitted, c.Refused - o.Refused, c.Failed - o.Failed, c.Waited - o.Waited, c.Calls - o.Calls}
}

func (d *drive) total() (sum counts) {
	for _, c := range d.done {
		sum = sum.minus(counts{}.minus(c))
	}
	return sum
}

func (d *drive) run(ctx context.Context) (err error) {
	d.heard, d.windows = make(chan said), map[int64]int64{}
	d.Server, d.Window, d.Limit = d.server.name, d.plan.window.Seconds(), limit
	defer func() { err = cmp.Or(err, d.end()) }()
	for i := range d.workers {
		if d.workers[i], err = startWorker(i, d.server.addr, d.plan.window, d.heard); err != nil {
			return err
		}
	}
	d.print(d.head())
	d.start = time.Now()
	if err := d.spread(); err != nil {
		return err
	}
	draw, second := time.NewTicker(50*time.Millisecond), time.NewTicker(time.Second)
	defer draw.Stop()
	defer second.Stop()
	kill, down, up, end := time.After(d.kill), time.After(d.down), time.After(d.up), time.After(d.length)
	for err == nil {
		select {
		case s := <-d.heard:
			err = d.hear(s)
		case <-draw.C:
			d.show()
		case <-second.C:
			d.sample()
		case <-kill:
			err = d.killOne()
		case <-down:
			err = d.killServer(ctx)
		case <-up:
			err = d.restartServer()
		case <-ctx.Done():
			return nil
		case <-end:
			return nil
		}
	}
	return err
}

// spread lets the processes that are left share the requests, as a load balancer does.
func (d *drive) spread() (err error) {
	left := slices.DeleteFunc(slices.Clone(d.workers[:]), func(p *process) bool { return p == nil })
	for _, p := range left {
		err = cmp.Or(err, p.order(demand*limit/d.plan.window.Seconds()/float64(len(left))))
	}
	return err
}

// victim is the process that is killed.
const victim = 1

func (d *drive) killOne() error {
	if err := d.workers[victim].cmd.Process.Kill(); err != nil {
		return err
	}
	d.KilledAt = d.at()
	for d.workers[victim] != nil { // it may have said something before
		if err := d.hear(<-d.heard); err != nil {
			return err
		}
	}
	d.event("process %d is killed (%s) with %s tokens in its memory", victim+1, d.Killed, commas(d.Held))
	return d.spread()
}

func (d *drive) killServer(ctx context.Context) error {
	if err := d.server.down(ctx); err != nil {
		return err
	}
	d.DownAt, d.away = d.at(), d.total()
	d.event("Redis is killed: processes admit what they hold, then get errors")
	return nil
}

func (d *drive) restartServer() error {
	if err := d.server.up(); err != nil {
		return err
	}
	d.UpAt = d.at()
	d.event("Redis is back, with its data")
	return nil
}

// hear counts a report.
func (d *drive) hear(s said) error {
	switch {
	case s.ended != "" && s.from == victim && d.KilledAt > 0:
		d.Killed, d.workers[victim] = s.ended, nil
		return nil
	case s.ended != "":
		d.workers[s.from] = nil
		return fmt.Errorf("process %d has ended: %s", s.from+1, s.ended)
	}
	for window := range s.Admitted {
		if _, known := d.windows[window]; !known {
			d.turn(window) // before its first requests count
		}
	}
	c := &d.done[s.from]
	c.Requests += s.Requests
	c.Refused += s.Refused
	c.Failed += s.Failed
	c.Calls, c.Waited = s.Calls, s.Waited
	for window, n := range s.Admitted {
		c.Admitted += n
		d.windows[window] += n
	}
	if s.Failed > 0 && (d.DownAt == 0 || d.AdmittedAt > 0) {
		d.Error = cmp.Or(d.Error, s.Error)
	}
	if s.from == victim {
		d.Held = s.Held
	}
	if d.UpAt > 0 && d.AdmittedAt == 0 && len(s.Admitted) > 0 {
		d.served[s.from] = true
		if d.allServed() {
			d.AdmittedAt, d.Away = d.at(), d.total().minus(d.away)
		}
	}
	return nil
}

// allServed reports whether each process that is left has admitted a request since Redis was
// back. A process finds that out by itself.
func (d *drive) allServed() bool {
	for i, p := range d.workers {
		if p != nil && !d.served[i] {
			return false
		}
	}
	return true
}

// end ends the processes that are left, and counts what they say at last.
func (d *drive) end() (err error) {
	d.Seconds = d.at()
	for _, p := range d.workers {
		if p != nil {
			_ = p.orders.Close()
		}
	}
	for slices.ContainsFunc(d.workers[:], func(p *process) bool { return p != nil }) {
		s := <-d.heard
		if s.ended == "exit status 0" {
			d.workers[s.from] = nil
			continue
		}
		err = cmp.Or(err, d.hear(s))
	}
	d.sample()
	d.print(d.row())
	if time.Now().UnixMilli() < d.open {
		d.event("the demo ends in the middle of this window")
	}
	d.Total, d.Counted = d.total(), d.server.calls(context.Background())
	for _, n := range d.windows {
		d.Most = max(d.Most, n)
	}
	return err
}

// at is the time since the first request, in seconds.
func (d *drive) at() float64 { return time.Since(d.start).Seconds() }

func (d *drive) sample() {
	s := sample{At: d.at()}
	for i, c := range d.done {
		s.Processes[i] = c.minus(d.sampled[i])
	}
	d.sampled = d.done
	d.Samples = append(d.Samples, s)
}

// show prints a row when its window has ended.
func (d *drive) show() {
	newest := int64(0)
	for window := range d.windows {
		newest = max(newest, window)
	}
	if time.Now().UnixMilli() > newest+100 {
		newest = 0 // Redis has opened none since
	}
	d.turn(newest)
}

// turn prints the row of the open window, if another one begins.
func (d *drive) turn(window int64) {
	if window != d.open && d.shown != d.total() && (d.open != 0 || d.DownAt > 0) {
		d.print(d.row())
		d.shown = d.total()
	}
	d.open = window
}
