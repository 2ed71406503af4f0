package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/httplimit"
)

// request is one from an address, with the headers given in pairs.
func request(from string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = from
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func prefixes(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestByAddress(t *testing.T) {
	const proxy, peer = "10.0.0.1:4711", "203.0.113.9:4711"
	proxies := prefixes("10.0.0.0/8", "2001:db8:ffff::/48")
	for _, test := range []struct {
		name, from string
		forwarded  []string // X-Forwarded-For, line by line
		want       string
	}{
		{"the peer is no proxy: the header counts for nothing", peer, []string{"198.51.100.7"}, "addr:203.0.113.9"},
		{"a proxy by itself", proxy, nil, "addr:10.0.0.1"},
		{"what the client wrote stands left", proxy, []string{"1.1.1.1, 198.51.100.7"}, "addr:198.51.100.7"},
		{"even if it names a proxy", proxy, []string{"10.0.0.9, 198.51.100.7"}, "addr:198.51.100.7"},
		{"in several lines", proxy, []string{"1.1.1.1", "198.51.100.7", "10.0.0.2"}, "addr:198.51.100.7"},
		{"none but proxies", proxy, []string{"10.0.0.3, 10.0.0.2"}, "addr:10.0.0.3"},
		{"no address", proxy, []string{"198.51.100.7, unknown"}, "addr:10.0.0.1"},
		{"no address behind a second proxy", proxy, []string{"198.51.100.7, nonsense, 10.0.0.2"}, "addr:10.0.0.2"},
		{"empty elements", proxy, []string{"198.51.100.7, , 10.0.0.2,", ""}, "addr:198.51.100.7"},
		{"with a port", proxy, []string{"198.51.100.7:80"}, "addr:198.51.100.7"},
		{"IPv6", "[2001:db8:0:1:2::3]:4711", nil, "addr:2001:db8:0:1::/64"},
		{"IPv6 in the header", proxy, []string{"2001:db8:0:1:2::3"}, "addr:2001:db8:0:1::/64"},
		{"IPv6 in the header, in brackets", proxy, []string{"[2001:db8:0:1:2::3]"}, "addr:2001:db8:0:1::/64"},
		{"IPv6 in the header, with a port", proxy, []string{"[2001:db8:0:1:2::3]:80"}, "addr:2001:db8:0:1::/64"},
		{"IPv6 proxy", "[2001:db8:ffff::1]:4711", []string{"198.51.100.7"}, "addr:198.51.100.7"},
		{"IPv4 as IPv6", "[::ffff:203.0.113.9]:4711", nil, "addr:203.0.113.9"},
		{"a proxy's IPv4 as IPv6", "[::ffff:10.0.0.1]:4711", []string{"::ffff:198.51.100.7"}, "addr:198.51.100.7"},
		{"without a port", "203.0.113.9", nil, "addr:203.0.113.9"},
		{"a Unix socket", "@", []string{"198.51.100.7"}, "addr:198.51.100.7"},
		{"a Unix socket, without header", "@", nil, ""},
		{"a peer that makes no sense", "nonsense", []string{"198.51.100.7"}, ""},
		{"a leading zero is no address", proxy, []string{"010.1.1.1"}, "addr:10.0.0.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := request(test.from)
			r.Header["X-Forwarded-For"] = test.forwarded
			assert.Equal(t, test.want, httplimit.ByAddress(proxies...)(r))
		})
	}
	assert.Empty(t, httplimit.ByAddress()(request("@", "X-Forwarded-For", "198.51.100.7")), "nobody is trusted")
	assert.Equal(t, "addr:10.0.0.1", httplimit.ByAddress()(request(proxy, "X-Forwarded-For", "198.51.100.7")))
}

// Whatever a client writes into the header, its key is its own once a trusted
// proxy has added its address, on the same line or another.
func FuzzSpoofing(f *testing.F) {
	for _, s := range []string{"", "1.1.1.1", `"`, `"1.1.1.1`, "10.0.0.2,", ",", " "} {
		f.Add(s)
	}
	trusted := prefixes("10.0.0.0/8")
	byAddress := httplimit.ByAddress(trusted...)
	f.Fuzz(func(t *testing.T, written string) {
		const client = "addr:198.51.100.7"
		for _, hop := range []string{"", ", 10.0.0.2"} {
			require.Equal(t, client, byAddress(request("10.0.0.1:1", "X-Forwarded-For", written+", 198.51.100.7"+hop)))
			require.Equal(t, client, byAddress(request("10.0.0.1:1", "X-Forwarded-For", written, "X-Forwarded-For", "198.51.100.7"+hop)))
		}
	})
}

func TestKeysOfKinds(t *testing.T) {
	user := httplimit.ByUser(func(r *http.Request) string { return r.URL.Query().Get("user") })
	key := httplimit.First(user, httplimit.ByHeader("x-tenant"), httplimit.ByAddress())
	for _, test := range []struct {
		query   string
		headers []string
		want    string
	}{
		{"?user=alice", []string{"X-Tenant", "acme"}, "user:alice"},
		{"", []string{"X-Tenant", "acme"}, "header:X-Tenant:acme"},
		{"", []string{"X-Tenant", "addr:198.51.100.7"}, "header:X-Tenant:addr:198.51.100.7"},
		{"", []string{"X-Tenant", "one", "X-Tenant", "two"}, "addr:203.0.113.9"},
		{"", nil, "addr:203.0.113.9"},
	} {
		r := request("203.0.113.9:1", test.headers...)
		r.URL.RawQuery = strings.TrimPrefix(test.query, "?")
		assert.Equal(t, test.want, key(r))
	}
	host := request("", "Host", "a client's header in a map")
	host.Host = "Acme.example"
	assert.Equal(t, "header:Host:acme.example", httplimit.ByHeader("host")(host), "net/http moves it out of the headers")
	host.Host = "" // HTTP/1.0
	assert.Empty(t, httplimit.ByHeader("host")(host))
	out, err := http.NewRequest(http.MethodGet, "http://api.example/", nil)
	require.NoError(t, err)
	out.Host = "" // as in a client's request by default
	assert.Equal(t, "header:Host:api.example", httplimit.ByHeader("host")(out))
	assert.Empty(t, httplimit.First()(request("")))
}
