package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/httplimit"
)

// proxied serves what is behind a reverse proxy, with limits in front of that: the first is
// the inner one.
func proxied(t *testing.T, behind *httptest.Server, inner *reservoir.Limiter, outer ...*reservoir.Limiter) *httptest.Server {
	t.Helper()
	target, err := url.Parse(behind.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = behind.Client().Transport
	h := httplimit.New(inner, byTenant, httplimit.WithPolicy(httplimit.Policy{Name: "front"}))(proxy)
	for _, l := range outer {
		h = httplimit.New(l, byTenant)(h)
	}
	front := httptest.NewServer(h)
	t.Cleanup(front.Close)
	return front
}

// A server behind a reverse proxy has limits of its own. Its clients are told ours, and both
// in the fields that are lists.
func TestBehindAReverseProxy(t *testing.T) {
	upstream := limited(t, open(t, reservoir.PerHour(3)), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	upstream.Start()
	resp, _ := ask(t, proxied(t, upstream, open(t, reservoir.PerHour(10))), t.Context())
	for name, want := range map[string]string{"Limit": "10", "Remaining": "9", "Used": "1", "Resource": "front"} {
		assert.Equal(t, []string{want}, resp.Header.Values("X-RateLimit-"+name), name)
	}
	assert.Len(t, resp.Header.Values("X-RateLimit-Reset"), 1)
	assert.Len(t, resp.Header.Values("RateLimit"), 2)
}

// What is refunded or settled after a server behind a proxy has added its headers is told all
// the same, and alone.
func TestChangeOfHeadersThatWereAddedTo(t *testing.T) {
	for status, left := range map[int]string{http.StatusOK: "6", http.StatusNotModified: "10"} {
		for _, settle := range []bool{true, false} {
			if !settle && status == http.StatusOK {
				left = "9"
			}
			l := open(t, reservoir.PerHour(10))
			resp := get(httplimit.New(l, byTenant)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for _, name := range []string{"Limit", "Remaining", "Used", "Reset", "Resource"} {
					w.Header().Add("X-RateLimit-"+name, "77")
				}
				if settle {
					assert.NoError(t, httplimit.Settle(w, 4))
					w.Header().Add("X-RateLimit-Remaining", "78")
				}
				w.WriteHeader(status)
			})), "X-Tenant", "acme")
			assert.Regexp(t, `^"default";r=`+left+";", resp.Header.Get("RateLimit"))
			assert.Equal(t, []string{left}, resp.Header.Values("X-RateLimit-Remaining"))
			assert.Equal(t, spent(l), number(t, resp, "X-RateLimit-Used"))
			for _, name := range []string{"Limit", "Used", "Reset", "Resource"} {
				assert.Len(t, resp.Header.Values("X-RateLimit-"+name), 1, name)
			}
		}
	}
}

// The proxy of the standard library clears all headers after Early Hints. Those of each limit
// are there again, in their order, for the hints and for the response.
func TestEarlyHintsBehindAReverseProxy(t *testing.T) {
	for status, left := range map[int]string{http.StatusOK: "9", http.StatusNotModified: "10"} {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("X-RateLimit-Limit", "77")
			w.Header().Set("RateLimit", "theirs")
			w.WriteHeader(status)
		}))
		t.Cleanup(upstream.Close)
		front := proxied(t, upstream, open(t, reservoir.PerHour(10)), open(t, reservoir.PerHour(10)))
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			hints = append(hints, h["Ratelimit-Policy"]...)
			return nil
		}})
		resp, _ := ask(t, front, ctx)
		assert.Equal(t, status, resp.StatusCode)
		for name, want := range map[string]string{"Limit": "10", "Remaining": left, "Resource": "front"} {
			assert.Equal(t, []string{want}, resp.Header.Values("X-RateLimit-"+name), name)
		}
		policies := []string{`"default";q=10`, `"front";q=10`}
		assert.Equal(t, policies, resp.Header.Values("RateLimit-Policy"))
		assert.Equal(t, slices.Concat(policies, policies), hints)
		fields := resp.Header.Values("RateLimit")
		if assert.Len(t, fields, 3) {
			assert.Contains(t, fields[0], `"default";r=`+left)
			assert.Contains(t, fields[1], `"front";r=`+left)
			assert.Equal(t, "theirs", fields[2])
		}
	}
}

// The proxy of the standard library takes the connection over before it copies the headers
// of an upgrade. The client reads one limit there too.
func TestUpgradeBehindAReverseProxy(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "77")
		w.Header().Set("Upgrade", r.Header.Get("Upgrade"))
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, _, err := http.NewResponseController(w).Hijack()
		if assert.NoError(t, err) {
			_ = conn.Close()
		}
	}))
	t.Cleanup(upstream.Close)
	front := proxied(t, upstream, open(t, reservoir.PerHour(10)), open(t, reservoir.PerHour(10)))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL, nil)
	require.NoError(t, err)
	r.Header = http.Header{"X-Tenant": {"acme"}, "Connection": {"Upgrade"}, "Upgrade": {"echo"}}
	resp, err := front.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	for name, want := range map[string]string{"Limit": "10", "Remaining": "9", "Resource": "front"} {
		assert.Equal(t, []string{want}, resp.Header.Values("X-RateLimit-"+name), name)
	}
}
