package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/grpclimit"
)

// This server limits each client in each method, but no reflection.
func ExampleServer() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerHour(2)) // or redisstore.New(client)
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	limits := grpclimit.Server{
		Limiter: limiter,
		Key: func(ctx context.Context, c grpclimit.Call) (string, error) {
			peer, err := grpclimit.ByPeer(ctx, c)
			return c.Method + "|" + peer, err // no method has a |, so that each pair has a key of its own
		},
		Cost: func(_ context.Context, c grpclimit.Call) int64 {
			if strings.HasPrefix(c.Method, "/grpc.reflection.v1.ServerReflection/") {
				return 0
			}
			return 1
		},
		Refund: grpclimit.Codes(codes.Internal, codes.Unavailable),
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limits.Unary()), grpc.ChainStreamInterceptor(limits.Stream()))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener := bufconn.Listen(1 << 16) // or net.Listen("tcp", ":8080")
	go server.Serve(listener)
	defer server.Stop()

	conn, err := grpc.NewClient("passthrough:///example", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	client := grpc_health_v1.NewHealthClient(conn)
	for range 3 {
		var header metadata.MD
		_, err := client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header))
		fmt.Println(status.Code(err), header.Get(grpclimit.DefaultMetadata+"-remaining"))
	}
	// Output:
	// OK [1]
	// OK [0]
	// ResourceExhausted []
}

// This client keeps to somebody else's limit, together with all processes that share the
// store.
func ExampleClient() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerSecond(100)) // or redisstore.New(client)
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	limits := grpclimit.Client{Limiter: limiter}
	conn, err := grpc.NewClient("dns:///api.example.com", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(limits.Unary()), grpc.WithChainStreamInterceptor(limits.Stream()))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fmt.Println(conn.Target()) // the key is "target:" and this
	// Output: dns:///api.example.com
}

// A KeyFunc says which user, organisation, method or target a call counts for.
func ExampleKeyFunc() {
	type userKey struct{}
	user := func(ctx context.Context) (string, bool) {
		name, ok := ctx.Value(userKey{}).(string)
		return name, ok
	}
	ctx := context.WithValue(context.Background(), userKey{}, "alice") // by the interceptor that authenticates
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("tenant", "acme"))
	call := grpclimit.Call{Method: "/library.Books/Find", Target: "dns:///books.example.com"}
	for _, key := range []grpclimit.KeyFunc{
		grpclimit.ByContext(user),
		grpclimit.ByMetadata("tenant"),
		grpclimit.ByMethod,
		grpclimit.ByTarget, // in a client
	} {
		fmt.Println(key(ctx, call))
	}
	_, err := grpclimit.ByContext(user)(context.Background(), call)
	fmt.Println(status.Code(err))
	// Output:
	// user:alice <nil>
	// header:Tenant:acme <nil>
	// method:/library.Books/Find <nil>
	// target:dns:///books.example.com <nil>
	// Unauthenticated
}
