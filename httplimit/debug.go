package httplimit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/go-reservoir/reservoir"
)

// Debug returns a page about this process' limiters, by name, for operators. It shows the
// Stats of each limiter, with the names of [reservoir.Figures], and the state of its 100
// most denied keys. The page is text or, if the request accepts exactly application/json, JSON. It
// answers only GET and HEAD. Text quotes keys as Go does. JSON quotes only keys that are
// not UTF-8, or that begin with a quote.
//
// The page shows keys, which may be names and addresses of users, so mount it where only
// operators have access, like net/http/pprof. A request visits every key in memory, under
// each key's lock, and needs memory for 100 keys. It makes no store call. Debug panics if
// a limiter is nil.
func Debug(limiters map[string]*reservoir.Limiter) http.Handler {
	limiters = maps.Clone(limiters)
	for name, l := range limiters {
		if l == nil {
			panic("httplimit: no limiter " + strconv.Quote(name))
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff") // clients may have chosen the keys
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
			return
		}
		pages := []page{}
		for _, name := range slices.Sorted(maps.Keys(limiters)) {
			pages = append(pages, pageOf(name, limiters[name]))
		}
		if r.Header.Get("Accept") == "application/json" {
			h.Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(pages) // the client may have left
			return
		}
		h.Set("Content-Type", "text/plain; charset=utf-8")
		for _, p := range pages {
			p.write(w)
		}
	})
}

// page is an operator's view of one limiter.
type page struct {
	Name  string           `json:"name"`
	Stats map[string]int64 `json:"stats"` // by the names of reservoir.Figures
	Keys  []standing       `json:"keys"`
}

// standing is the state of a key.
type standing struct {
	Key       keyText   `json:"key"`
	Denied    int64     `json:"denied"`
	Spent     int64     `json:"spent"`
	Held      int64     `json:"held"`
	Limit     int64     `json:"limit"`
	Seconds   float64   `json:"window_seconds"`
	Exhausted bool      `json:"exhausted"`
	Reset     time.Time `json:"reset,omitzero"` // the window's end, if one is open
}

// keyText is a key in JSON.
type keyText string

// MarshalText quotes keys that are not UTF-8, which JSON cannot hold, and keys that begin
// with a quote, so that two keys never look the same.
func (k keyText) MarshalText() ([]byte, error) {
	if utf8.ValidString(string(k)) && !strings.HasPrefix(string(k), `"`) {
		return []byte(k), nil
	}
	return strconv.AppendQuote(nil, string(k)), nil
}

func pageOf(name string, l *reservoir.Limiter) page {
	p, s := page{Name: name, Stats: map[string]int64{}, Keys: mostDenied(l)}, l.Stats()
	for _, f := range reservoir.Figures() {
		p.Stats[f.Name] = f.Value(&s)
	}
	return p
}

// mostDenied returns the most denied keys, in order. It never holds more than it returns, plus one.
func mostDenied(l *reservoir.Limiter) []standing {
	const most = 100
	all := make([]standing, 0, most+1)
	for key, s := range l.Keys() {
		k := standing{keyText(key), s.Denied, s.Spent, s.Held, s.Limit.Tokens, s.Limit.Window.Seconds(), s.Exhausted, s.Reset}
		i, _ := slices.BinarySearchFunc(all, k, standing.compare)
		if i < most {
			all = slices.Insert(all, i, k)
			all = all[:min(len(all), most)]
		}
	}
	return all
}

// compare orders keys by denied requests, then by spent tokens, the highest first.
func (k standing) compare(other standing) int {
	return cmp.Or(cmp.Compare(other.Denied, k.Denied), cmp.Compare(other.Spent, k.Spent), cmp.Compare(k.Key, other.Key))
}

func (p page) write(w io.Writer) {
	fmt.Fprintf(w, "%q\n\n", p.Name)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range reservoir.Figures() {
		fmt.Fprintf(t, "%s\t%d\n", f.Name, p.Stats[f.Name])
	}
	fmt.Fprint(t, "\ndenied\tspent\theld\tlimit\twindow\tends\tkey\n")
	for _, k := range p.Keys {
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%gs\t%s\t%q\n", k.Denied, k.Spent, k.Held, k.Limit, k.Seconds, k.ends(), k.Key)
	}
	fmt.Fprintln(t)
	_ = t.Flush() // the client may have left
}

func (k standing) ends() string {
	if k.Reset.IsZero() {
		return "-"
	}
	return k.Reset.UTC().Format(time.RFC3339)
}
