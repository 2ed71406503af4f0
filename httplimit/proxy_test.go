package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/httplimit"
)

// proxied serves what is behind a reverse proxy, with a limit in front of that.
func proxied(t *testing.T, l *reservoir.Limiter, behind *httptest.Server) *httptest.Server {
	t.Helper()
	target, err := url.Parse(behind.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = behind.Client().Transport
	front := limited(t, l, proxy.ServeHTTP, httplimit.WithPolicy(httplimit.Policy{Name: "front"}))
	front.Start()
	return front
}

// A server behind a reverse proxy has limits of its own. Its clients are told ours, and both
// in the fields that are lists.
func TestBehindAReverseProxy(t *testing.T) {
	upstream := limited(t, open(t, reservoir.PerHour(3)), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	upstream.Start()
	resp, _ := ask(t, proxied(t, open(t, reservoir.PerHour(10)), upstream), t.Context())
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
