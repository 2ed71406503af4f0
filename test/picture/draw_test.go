package picture

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const (
	height      = 420
	left, right = 62, 550 // of both diagrams
)

// panel is a diagram: bars over time, between two heights on the page.
type panel struct {
	top, bottom float64
	most        float64 // the value at the top
	until       float64 // the time at the right end
}

func (p panel) x(t float64) float64 { return left + (right-left)*min(t/p.until, 1) }
func (p panel) y(v float64) float64 { return p.bottom - (p.bottom-p.top)*v/p.most }

// draw draws a record of the demo.
func draw(data []byte) ([]byte, error) {
	r, err := parse(data)
	if err != nil {
		return nil, err
	}
	c := newCanvas(question, height)
	c.text(8, 52, plain, "start", "For %s requests three processes made %s Redis calls. No window", table.Commas(r.Total.Requests), table.Commas(r.Total.Calls))
	c.text(8, 74, plain, "start", "of %.0f s went over %s. The killed process took %s tokens with it.", r.Window, table.Commas(r.Limit), table.Commas(r.Held))
	requests := panel{150, 264, 0, r.Seconds}
	calls := panel{320, 384, 0, r.Seconds}
	for _, s := range r.Samples {
		requests.most, calls.most = max(requests.most, float64(s.sum().Requests)), max(calls.most, float64(s.sum().Calls))
	}
	requests.most, calls.most = round(requests.most), round(calls.most)
	c.text(8, 108, plain, "start", "Requests in a second:")
	at := 176.0
	for _, part := range []struct {
		class class
		words string
		room  float64
	}{{blue, "admitted", 100}, {grey, "refused", 92}, {red, "error (or your choice)", 0}} {
		c.rect(at, 96, 13, 13, part.class)
		c.text(at+18, 108, plain, "start", "%s", part.words)
		at += part.room
	}
	r.faults(c, requests, calls)
	requests.axis(c)
	c.rect(8, 292, 13, 13, orange)
	c.text(26, 304, plain, "start", "Redis calls in a second")
	calls.axis(c)
	before := 0.0
	for _, s := range r.Samples {
		sum := s.sum()
		requests.stack(c, before, s.At, []int64{sum.Admitted, sum.Refused, sum.Failed}, []class{blue, grey, red})
		calls.stack(c, before, s.At, []int64{sum.Calls}, []class{orange})
		before = s.At
	}
	for t := 0.0; t < r.Seconds-5; t += 10 {
		c.text(calls.x(t), 404, plain, "middle", "%.0f", t)
	}
	c.text(right, 404, plain, "end", "%.0f s", r.Seconds)
	return c.svg(), nil
}

const question = "What if a process dies, and then Redis?"

// faults draws what happened behind both diagrams, and says it above the first.
func (r record) faults(c *canvas, requests, calls panel) {
	for _, p := range []panel{requests, calls} {
		c.rect(p.x(r.DownAt), p.top, p.x(r.UpAt)-p.x(r.DownAt), p.bottom-p.top, shade)
		c.line(p.x(r.KilledAt), p.top, p.x(r.KilledAt), p.bottom, mark)
	}
	c.text(requests.x(r.KilledAt), requests.top-8, plain, "middle", "a process is killed")
	c.text(requests.x((r.DownAt+r.UpAt)/2), requests.top-8, plain, "middle", "Redis is gone")
}

// axis draws the base line, and the value at the top.
func (p panel) axis(c *canvas) {
	c.line(left, p.top, right, p.top, axis)
	c.line(left, p.bottom, right, p.bottom, axis)
	c.text(left-6, p.top+5, plain, "end", "%s", table.Commas(int64(p.most)))
	c.text(left-6, p.bottom+5, plain, "end", "0")
}

// stack draws the bar of a sample, by the second. A sample is about a second long, but the last
// one may be too short for a bar.
func (p panel) stack(c *canvas, from, to float64, parts []int64, classes []class) {
	if to-from < 0.1 {
		return
	}
	x, w := p.x(from), p.x(to)-p.x(from)-1
	sum := 0.0
	for i, part := range parts {
		next := sum + float64(part)/(to-from)
		next = min(next, p.most)
		c.rect(x, p.y(next), max(w, 1), p.y(sum)-p.y(next), classes[i])
		sum = next
	}
}

// round returns the least value above v with one or two digits.
func round(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(max(v, 1))))
	return math.Ceil(v/unit*2) / 2 * unit
}

// record is what the picture needs of the demo's record. Times are in seconds.
type record struct {
	Seconds    float64 `json:"seconds"`
	Window     float64 `json:"window_seconds"`
	Limit      int64   `json:"limit"`
	Samples    []sample
	Total      counts
	Most       int64   `json:"most_admitted_in_a_window"`
	KilledAt   float64 `json:"killed_at"`
	Held       int64   `json:"killed_held"`
	DownAt     float64 `json:"down_at"`
	UpAt       float64 `json:"up_at"`
	AdmittedAt float64 `json:"admitted_at"`
}

// sample is what each process did since the sample before.
type sample struct {
	At        float64
	Processes []counts
}

type counts struct {
	Requests, Admitted, Refused, Failed int64
	Calls                               int64 `json:"redis_calls"`
}

func parse(data []byte) (r record, err error) {
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, err
	}
	switch {
	case len(r.Samples) < 2 || r.Total.Requests == 0:
		return record{}, fmt.Errorf("the record has no samples")
	case r.KilledAt == 0 || r.DownAt == 0 || r.UpAt == 0:
		return record{}, fmt.Errorf("the record has no faults")
	case r.Most > r.Limit:
		return record{}, fmt.Errorf("a window of the record has %d of %d tokens", r.Most, r.Limit)
	}
	return r, nil
}

// sum is what all processes did since the sample before.
func (s sample) sum() (all counts) {
	for _, c := range s.Processes {
		all.Requests += c.Requests
		all.Admitted += c.Admitted
		all.Refused += c.Refused
		all.Failed += c.Failed
		all.Calls += c.Calls
	}
	return all
}
