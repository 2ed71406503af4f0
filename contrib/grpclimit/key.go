package grpclimit

import (
	"context"
	"net/netip"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Call is one call, as key and cost functions see it.
type Call struct {
	Method  string // in full: "/package.Service/Method"
	Stream  bool   // or else unary
	Request any    // of a unary call; nil for a stream
	Target  string // of a client's connection, as it was dialled; "" in a server
}

// KeyFunc names who or what a call counts for. Its error ends the call, so it
// should be a status. Calls of one key share one limit: a key that the client can
// choose freely limits nobody.
type KeyFunc func(ctx context.Context, c Call) (string, error)

// ByMethod gives each method a limit of its own, for all clients together.
func ByMethod(_ context.Context, c Call) (string, error) { return c.Method, nil }

// ByTarget gives each target of a client's connections a limit of its own.
func ByTarget(_ context.Context, c Call) (string, error) { return c.Target, nil }

// ByPeer gives each address that connects a limit of its own, for all its ports:
// an IPv4 address, or the /64 network of an IPv6 address, of which one customer
// usually has all. The address is the connection's, which no header can forge;
// behind a proxy it is the proxy's.
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

// ByMetadata gives each value of an incoming metadata key a limit of its own; of
// several values, the first counts. A call without is UNAUTHENTICATED. The value
// must have been verified by an interceptor before this one, or clients choose a
// new one for each call.
func ByMetadata(key string) KeyFunc {
	return func(ctx context.Context, _ Call) (string, error) {
		if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 && v[0] != "" {
			return v[0], nil
		}
		return "", status.Errorf(codes.Unauthenticated, "no %s in the metadata", key)
	}
}

// ByContext gives each name that from finds in the context a limit of its own:
// the user whom an interceptor before this one has authenticated, say. A call
// without is UNAUTHENTICATED.
func ByContext(from func(ctx context.Context) (name string, ok bool)) KeyFunc {
	return func(ctx context.Context, _ Call) (string, error) {
		if name, ok := from(ctx); ok && name != "" {
			return name, nil
		}
		return "", status.Error(codes.Unauthenticated, "the caller is not known")
	}
}

// escape keeps the parts of a joined key apart whatever they hold.
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

// Methods returns a Skip for these methods, each in full or, ending in a slash,
// a whole service: "/grpc.health.v1.Health/".
func Methods(names ...string) func(context.Context, Call) bool {
	set := map[string]bool{}
	for _, name := range names {
		set[name] = true
	}
	return func(_ context.Context, c Call) bool {
		return set[c.Method] || set[c.Method[:strings.LastIndexByte(c.Method, '/')+1]]
	}
}
