package grpclimit_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir/contrib/grpclimit"
	"github.com/go-reservoir/reservoir/httplimit"
)

func TestByPeer(t *testing.T) {
	for want, addr := range map[string]net.Addr{
		"addr:192.0.2.1":     &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4711},
		"addr:192.0.2.2":     &net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.2"), Port: 4711},
		"addr:2001:db8::/64": &net.TCPAddr{IP: net.ParseIP("2001:db8::1:2"), Port: 4711},
		"addr:fe80::/64":     &net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 4711, Zone: "eth0"},
		"unix:/run/socket":   &net.UnixAddr{Name: "/run/socket", Net: "unix"},
		"unix:192.0.2.1:80":  &net.UnixAddr{Name: "192.0.2.1:80", Net: "unix"}, // a client chooses the name
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: addr})
		got, err := grpclimit.ByPeer(ctx, grpclimit.Call{})
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := grpclimit.ByPeer(t.Context(), grpclimit.Call{})
	assert.Equal(t, codes.Internal, status.Code(err))
}

func TestByMetadata(t *testing.T) {
	key := grpclimit.ByMetadata("X-API-Key")
	for want, values := range map[codes.Code][]string{
		codes.OK:              {"x-api-key", "a"},
		codes.Unauthenticated: {"x-api-key", "", "x-another", "a"},
		codes.InvalidArgument: {"x-api-key", "a", "x-api-key", "b"}, // which is the gateway's?
	} {
		got, err := key(metadata.NewIncomingContext(t.Context(), metadata.Pairs(values...)), grpclimit.Call{})
		require.Equal(t, want, status.Code(err))
		assert.Equal(t, err == nil, got == "header:X-Api-Key:a", got)
	}
	_, err := key(t.Context(), grpclimit.Call{})
	assert.Equal(t, codes.Unauthenticated, status.Code(err))
}

// One user, peer or tenant has one key over HTTP and gRPC, and no name that a client chooses
// is a key of another kind.
func TestOneKeyOverHTTPAndGRPC(t *testing.T) {
	const name = "203.0.113.7" // as a user, a tenant and a peer
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	request.RemoteAddr = name + ":4711"
	request.Header.Set("X-Tenant", name)
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(request.RemoteAddr))})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("x-tenant", name))
	call := grpclimit.Call{Method: name, Target: name}

	seen := map[string]bool{}
	for _, way := range []struct {
		http httplimit.KeyFunc // nil if only gRPC has this kind
		grpc grpclimit.KeyFunc
	}{
		{httplimit.ByAddress(), grpclimit.ByPeer},
		{httplimit.ByHeader("x-tenant"), grpclimit.ByMetadata("X-Tenant")},
		{httplimit.ByUser(func(*http.Request) string { return name }), grpclimit.ByContext(func(context.Context) (string, bool) { return name, true })},
		{nil, grpclimit.ByMethod},
		{nil, grpclimit.ByTarget},
	} {
		key, err := way.grpc(ctx, call)
		require.NoError(t, err)
		if way.http != nil {
			assert.Equal(t, way.http(request), key)
		}
		kind, rest, _ := strings.Cut(key, ":")
		assert.True(t, kind != "" && strings.HasSuffix(rest, name), key)
		assert.False(t, seen[kind], key)
		seen[kind] = true
	}
}

func TestByContext(t *testing.T) {
	for name, want := range map[string]codes.Code{"ada": codes.OK, "": codes.Unauthenticated} {
		got, err := grpclimit.ByContext(func(context.Context) (string, bool) { return name, true })(t.Context(), grpclimit.Call{})
		assert.Equal(t, want, status.Code(err))
		assert.Equal(t, err == nil, got == "user:ada", got)
	}
	_, err := grpclimit.ByContext(func(context.Context) (string, bool) { return "ada", false })(t.Context(), grpclimit.Call{})
	assert.Equal(t, codes.Unauthenticated, status.Code(err))
}
