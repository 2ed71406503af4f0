package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir/contrib/grpclimit"
)

func TestByPeer(t *testing.T) {
	for want, addr := range map[string]net.Addr{
		"192.0.2.1":     &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4711},
		"192.0.2.2":     &net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.2"), Port: 4711},
		"2001:db8::/64": &net.TCPAddr{IP: net.ParseIP("2001:db8::1:2"), Port: 4711},
		"fe80::/64":     &net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 4711, Zone: "eth0"},
		"/run/socket":   &net.UnixAddr{Name: "/run/socket", Net: "unix"},
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
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-api-key", "a", "x-api-key", "b"))
	got, err := key(ctx, grpclimit.Call{})
	require.NoError(t, err)
	assert.Equal(t, "a", got)
	for _, ctx := range []context.Context{t.Context(), metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-api-key", ""))} {
		_, err = key(ctx, grpclimit.Call{})
		assert.Equal(t, codes.Unauthenticated, status.Code(err))
	}
}

func TestByContext(t *testing.T) {
	for name, want := range map[string]codes.Code{"ada": codes.OK, "": codes.Unauthenticated} {
		got, err := grpclimit.ByContext(func(context.Context) (string, bool) { return name, true })(t.Context(), grpclimit.Call{})
		assert.Equal(t, want, status.Code(err))
		assert.Equal(t, name, got)
	}
	_, err := grpclimit.ByContext(func(context.Context) (string, bool) { return "ada", false })(t.Context(), grpclimit.Call{})
	assert.Equal(t, codes.Unauthenticated, status.Code(err))
}

// No two combinations make the same key.
func TestJoin(t *testing.T) {
	fixed := func(s string) grpclimit.KeyFunc {
		return func(context.Context, grpclimit.Call) (string, error) { return s, nil }
	}
	seen := map[string][2]string{}
	parts := []string{"", "a", "|", `\`, `|\`, `\|`, "a|b", `a\`}
	for _, a := range parts {
		for _, b := range parts {
			key, err := grpclimit.Join(fixed(a), fixed(b))(t.Context(), grpclimit.Call{})
			require.NoError(t, err)
			assert.NotContains(t, seen, key)
			seen[key] = [2]string{a, b}
		}
	}
	_, err := grpclimit.Join(fixed("a"), grpclimit.ByPeer)(t.Context(), grpclimit.Call{})
	assert.Equal(t, codes.Internal, status.Code(err))
}

func TestMethods(t *testing.T) {
	skip := grpclimit.Methods("/grpc.health.v1.Health/", "/a.B/C")
	for method, want := range map[string]bool{
		"/grpc.health.v1.Health/Check": true, "/a.B/C": true,
		"/a.B/D": false, "/grpc.health.v1.Healthy/Check": false, "": false,
	} {
		assert.Equal(t, want, skip(t.Context(), grpclimit.Call{Method: method}), method)
	}
}
