package grpclimit

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
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
// key freely, it limits none of them. A KeyFunc must be safe for concurrent use.
type KeyFunc func(ctx context.Context, c Call) (string, error)

// ByMethod gives each method a limit of its own, for all clients together.
func ByMethod(_ context.Context, c Call) (string, error) { return c.Method, nil }

// ByTarget gives each target of a client's connections a limit of its own.
func ByTarget(_ context.Context, c Call) (string, error) { return c.Target, nil }

// ByPeer gives each peer address a limit of its own, for all its ports: an IPv4 address,
// or the /64 network of an IPv6 address, because one customer usually has the whole
// network. The address is the connection's, which no header can forge. Behind a proxy it
// is the proxy's address.
func ByPeer(ctx context.Context, _ Call) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return "", status.Error(codes.Internal, "the call has no peer address")
	}
	return network(p.Addr.String()), nil
}

func network(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return address // a socket's path, or a pipe
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, 64).Masked().String()
}

// ByMetadata gives each value of an incoming metadata key a limit of its own. If the key
// has several values, the first one counts. A call without a value ends with
// UNAUTHENTICATED. An earlier interceptor must have verified the value, because clients
// could otherwise choose a new one for each call.
func ByMetadata(key string) KeyFunc {
	return func(ctx context.Context, _ Call) (string, error) {
		if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 && v[0] != "" {
			return v[0], nil
		}
		return "", status.Errorf(codes.Unauthenticated, "no %s in the metadata", key)
	}
}

// ByContext gives each name that from finds in the context a limit of its own, such as the
// user that an earlier interceptor has authenticated. A call without a name ends with
// UNAUTHENTICATED.
func ByContext(from func(ctx context.Context) (name string, ok bool)) KeyFunc {
	return func(ctx context.Context, _ Call) (string, error) {
		if name, ok := from(ctx); ok && name != "" {
			return name, nil
		}
		return "", status.Error(codes.Unauthenticated, "the caller is not known")
	}
}

// escape keeps different lists of keys different when Join joins them.
var escape = strings.NewReplacer(`\`, `\\`, `|`, `\|`)

// Join gives each combination of keys a limit of its own, such as each client in
// each method: Join(ByPeer, ByMethod).
func Join(keys ...KeyFunc) KeyFunc {
	return func(ctx context.Context, c Call) (string, error) {
		parts := make([]string, len(keys))
		for i, key := range keys {
			part, err := key(ctx, c)
			if err != nil {
				return "", err
			}
			parts[i] = escape.Replace(part)
		}
		return strings.Join(parts, "|"), nil
	}
}

// Methods returns a Skip for these methods. Each name is a full method or, if it ends in a
// slash, a whole service: "/grpc.health.v1.Health/".
func Methods(names ...string) func(context.Context, Call) bool {
	return func(_ context.Context, c Call) bool {
		service := c.Method[:strings.LastIndexByte(c.Method, '/')+1]
		return slices.Contains(names, c.Method) || slices.Contains(names, service)
	}
}
