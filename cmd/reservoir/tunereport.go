package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// tuneReport is what "reservoir tune" found.
type tuneReport struct {
	Traffic        trafficReport `json:"traffic"`
	Limit          int64         `json:"limit"`
	WindowMS       float64       `json:"window_ms"`
	Tokens         int64         `json:"tokens_per_request"`
	DelayMS        float64       `json:"delay_ms"` // added to each call
	Store          string        `json:"store"`
	Virtual        bool          `json:"virtual_clock"`
	Policies       []sim.Outcome `json:"policies"`
	Recommendation advice        `json:"recommendation"`
	Notes          []string      `json:"notes"`

	heading string
}

type trafficReport struct {
	Requests  int     `json:"requests"`
	Keys      int     `json:"keys"`
	Processes int     `json:"processes"`
	Seconds   float64 `json:"seconds"`
	Seed      uint64  `json:"seed"`
	Recorded  bool    `json:"recorded"`
}

func (c *tuning) newReport(t sim.Traffic, all []sim.Outcome, store string) *tuneReport {
	s := c.setting
	r := &tuneReport{
		Traffic: trafficReport{len(t.Requests), len(t.Keys), t.Processes, t.Length.Seconds(), c.shape.Seed, c.trace != ""},
		Limit:   s.Limit.Tokens, WindowMS: millis(s.Limit.Window), DelayMS: millis(s.Delay),
		Store: store, Virtual: s.Virtual != nil, Tokens: c.tokens, Policies: all, Recommendation: advise(all), Notes: []string{},
	}
	what := "requests"
	if c.tokens > 1 {
		what = fmt.Sprintf("requests for %s tokens", table.Commas(c.tokens))
	}
	r.heading = fmt.Sprintf("%s %s in %v for %s and %s, limit %s, on %s", table.Commas(int64(len(t.Requests))), what, t.Length.Round(time.Millisecond), count(len(t.Keys), "key", "keys"),
		count(t.Processes, "process", "processes"), fmt.Sprintf("%s per %v", table.Commas(s.Limit.Tokens), s.Limit.Window), store)
	r.judge(t, s)
	return r
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return table.Commas(int64(n)) + " " + many
}

// latePart of a window is how late requests may be before it is worth a note.
const latePart = 50

// judge notes what makes the figures less than they seem.
func (r *tuneReport) judge(t sim.Traffic, s sim.Setting) {
	for _, o := range r.Policies {
		if late := time.Duration(o.Late); late > s.Limit.Window/latePart {
			r.note("%s: one request in a hundred was made %s or more after its time. This machine is busy or cannot keep that pace: its figures say more of that than of the policy. Use a lower -rate.", o.Policy, short(late))
		}
		if o.Errors > 0 {
			r.note("%s: %s ended in an error of the store.", o.Policy, count(int(o.Errors), "request", "requests"))
		}
	}
	if t.Length <= s.Limit.Window {
		r.note("The traffic is no longer than a window, in which nobody's demand is known yet: a longer one shows what comes after.")
	}
}

func (r *tuneReport) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// verdict is the error of a replay that went over the limit, which the library denies.
func (r *tuneReport) verdict() error {
	for _, o := range r.Policies {
		if o.Over > 0 {
			return fmt.Errorf("%s admitted %s over the limit", o.Policy, table.Commas(o.Over))
		}
	}
	return nil
}

// tuneColumns is the table.
var tuneColumns = []struct {
	name, about string
	of          func(o sim.Outcome) string
}{
	{"policy", "", func(o sim.Outcome) string { return o.Policy }},
	{"requests", "", func(o sim.Outcome) string { return table.Commas(o.Requests) }},
	{"admitted", "", func(o sim.Outcome) string { return table.Commas(o.Admitted) }},
	{"refused", "", func(o sim.Outcome) string { return table.Commas(o.Refused) }},
	{"needless", "requests refused though the limit had tokens that were never spent", func(o sim.Outcome) string { return table.Commas(o.Needless) }},
	{"over", "tokens over the limit", func(o sim.Outcome) string { return table.Commas(o.Over) }},
	{"calls", "to the store", func(o sim.Outcome) string { return table.Commas(o.StoreCalls) }},
	{"a request", "calls per request", func(o sim.Outcome) string { return percent(o.CallsPerRequest) }},
	{"stranded", "share of the limit that lay in processes when another was refused first", stranded},
	{"waited", "share of requests that waited for the store", func(o sim.Outcome) string { return percent(o.WaitedShare) }},
	{"p50", "of the time an answer took", func(o sim.Outcome) string { return short(time.Duration(o.P50)) }},
	{"p99", "", func(o sim.Outcome) string { return short(time.Duration(o.P99)) }},
}

// stranded is a dash where nobody was refused.
func stranded(o sim.Outcome) string {
	if o.StrandedWindows == 0 {
		return "–"
	}
	return percent(o.Stranded)
}

func (r *tuneReport) text(width int) string {
	rows := make([][]string, 1+len(r.Policies))
	about := ""
	for _, c := range tuneColumns {
		rows[0] = append(rows[0], c.name)
		for i, o := range r.Policies {
			rows[i+1] = append(rows[i+1], c.of(o))
		}
		if c.about != "" {
			about += fmt.Sprintf("%9s: %s\n", c.name, c.about)
		}
	}
	s := r.heading + "\n\n" + table.Within(width, rows, true) + "\n" + about + "\nRecommended: " + r.Recommendation.Policy + "\n"
	for _, paragraph := range append([]string{r.Recommendation.Reason}, r.Notes...) {
		s += prose(paragraph, width) + "\n"
	}
	return strings.TrimSuffix(s, "\n")
}
