// Picture draws the picture of README.md: what the demo recorded over a minute, as SVG. "make
// picture" records and draws it anew.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want the demo's record and the name of the picture")
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	picture, err := draw(data)
	if err != nil {
		return err
	}
	return os.WriteFile(args[1], picture, 0o666)
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
