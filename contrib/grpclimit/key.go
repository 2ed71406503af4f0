package grpclimit

import (
	"context"
	"net/netip"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir/internal/subject"
)

// Call is one call, as seen by key and cost functions.
type Call struct {
	Method  string // full name: "/package.Service/Method"
	Stream  bool   // false for a unary call
	Request any    // of a unary call; nil for a stream
	Target  string // of a client's connection, as it was dialled; "" in a server
}

// KeyFunc names the subject that a call is charged to. Its error ends the call, so it
// should be a status. Calls with the same key share one limit. If clients can choose the
// key freely, it limits none of them. The keys of this package begin with their kind
// ("user:", "addr:", ...), so that no client can use up a limit of another kind by choosing
// its name; those of users, addresses and metadata are the same as package httplimit's. Your
// own KeyFunc may join several, such as the address and the method. It must be safe for
// concurrent use.
type KeyFunc func(ctx context.Context, c Call) (string, error)

// ByMethod gives each method a limit of its own, for all clients together:
// "method:/package.Service/Method".
func ByMethod(_ context.Context, c Call) (string, error) { return "method:" + c.Method, nil }

// ByTarget gives each target of a client's connections a limit of its own, such as
// "target:dns:///api.example.com".
func ByTarget(_ context.Context, c Call) (string, error) { return "target:" + c.Target, nil }

// ByPeer gives each peer address a limit of its own, for all its ports: an IPv4 address,
// such as "addr:192.0.2.1", or the /64 network of an IPv6 address, such as
// "addr:2001:db8:0:1::/64", because one customer usually has the whole network. The address
// is the connection's, which no header can forge. Behind a proxy it is the proxy's address.
// A peer without an IP address has the kind of its network: "unix:@".
func ByPeer(ctx context.Context, _ Call) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return "", status.Error(codes.Internal, "the call has no peer address")
	}
	network, address := p.Addr.Network(), p.Addr.String()
	if at, err := netip.ParseAddrPort(address); err == nil && !strings.HasPrefix(network, "unix") { // a client names its own socket
		return subject.Address(at.Addr()), nil
	}
	return network + ":" + address, nil
}

// ByMetadata gives each value of an incoming metadata key a limit of its own, such as
// "header:X-Tenant:acme", the key of an HTTP header of that name. A call without a value
// ends with UNAUTHENTICATED, and one with several values with INVALID_ARGUMENT, because one
// may be the client's and another the gateway's. An earlier interceptor must have verified
// the value, because clients could otherwise choose a new one for each call.
func ByMetadata(key string) KeyFunc {
	header := subject.NewHeader(key)
	return func(ctx context.Context, _ Call) (string, error) {
		value, several := subject.Only(metadata.ValueFromIncomingContext(ctx, key))
		switch {
		case several:
			return "", status.Errorf(codes.InvalidArgument, "several values of %s in the metadata", key)
		case value == "":
			return "", status.Errorf(codes.Unauthenticated, "no %s in the metadata", key)
		}
		return header.Key(value), nil
	}
}

// ByContext gives each name that from finds in the context a limit of its own, such as the
// user that an earlier interceptor has authenticated: "user:alice". A call without a name
// ends with UNAUTHENTICATED.
func ByContext(from func(ctx context.Context) (name string, ok bool)) KeyFunc {
	return func(ctx context.Context, _ Call) (string, error) {
		if name, ok := from(ctx); ok && name != "" {
			return subject.User(name), nil
		}
		return "", status.Error(codes.Unauthenticated, "the caller is not known")
	}
}
