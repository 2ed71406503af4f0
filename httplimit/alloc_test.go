package httplimit_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/httplimit"
)

// discard is the least ResponseWriter. Its header map is made anew for each
// request, as a server's is, and so pays for growing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header               { return d.header }
func (d *discard) Write(p []byte) (int, error)       { return len(p), nil }
func (d *discard) WriteString(s string) (int, error) { return len(s), nil }
func (d *discard) WriteHeader(int)                   {}

var contentType = []string{"application/json"}

// bare is a handler that does what all do, and allocates nothing itself.
func bare(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = contentType
	_, _ = io.WriteString(w, "{}")
}

// kinds are the ways to be limited that cost differently.
func kinds() map[string]httplimit.KeyFunc {
	return map[string]httplimit.KeyFunc{
		"ready":  func(*http.Request) string { return "user:alice" },
		"header": httplimit.ByHeader("X-Tenant"),
		"addr":   httplimit.ByAddress(prefixes("10.0.0.0/8")...),
		"addr6":  httplimit.First(httplimit.ByHeader("X-None"), httplimit.ByAddress()),
	}
}

// typical is a request with all that kinds look for.
func typical(kind string) *http.Request {
	r := request("10.0.0.1:4711", "X-Tenant", "acme", "X-Forwarded-For", "198.51.100.7, 10.0.0.2")
	if kind == "addr6" {
		r.RemoteAddr = "[2001:db8:0:1:2::3]:4711"
	}
	return r
}

// plenty is a limiter that is not what is measured: it has stock for all.
func plenty(t testing.TB) *reservoir.Limiter {
	return open(t, reservoir.PerHour(1_000_000_000), reservoir.WithFixedBatch(100_000_000))
}

func TestAllocations(t *testing.T) {
	for kind, key := range kinds() {
		r := typical(kind)
		count := func(h http.Handler) float64 {
			return testing.AllocsPerRun(200, func() { h.ServeHTTP(&discard{http.Header{}}, r) })
		}
		without := count(http.HandlerFunc(bare))
		with := count(httplimit.New(plenty(t), httplimit.WithKey(key))(http.HandlerFunc(bare)))
		most := 2.0
		if kind == "ready" {
			most = 1
		}
		require.LessOrEqual(t, with-without, most, kind)
	}
}

func TestAllocationsOfAGroup(t *testing.T) {
	for n := 1; n <= 4; n++ {
		var all []*reservoir.Limiter
		var keys []httplimit.KeyFunc
		for range n {
			all, keys = append(all, plenty(t)), append(keys, kinds()["ready"])
		}
		count := func(h http.Handler) float64 {
			return testing.AllocsPerRun(200, func() { h.ServeHTTP(&discard{http.Header{}}, typical("")) })
		}
		without := count(http.HandlerFunc(bare))
		with := count(httplimit.NewGroup(reservoir.NewGroup(all...), httplimit.WithKey(keys...))(http.HandlerFunc(bare)))
		require.LessOrEqual(t, with-without, 2.0, n)
		if n > 1 {
			continue
		}
		settled := count(httplimit.New(all[0], httplimit.WithKey(keys...))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = httplimit.Settle(w, 3)
			bare(w, r)
		})))
		require.LessOrEqual(t, settled-without, 3.0, "as a refund: the headers that change, and a context")
	}
}
