package grpclimit

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/go-reservoir/reservoir"
)

// Server limits the calls that a gRPC server gets. Set Limiter and Key; all else
// may stay zero. Change nothing once an interceptor was made of it.
type Server struct {
	// Limiter decides. The interceptors do not close it.
	Limiter *reservoir.Limiter

	// Key names who a call counts for.
	Key KeyFunc

	// Cost is how many tokens a call costs; by default one. A call that costs
	// nothing (or less) is admitted without a look at the limit.
	Cost func(ctx context.Context, c Call) int64

	// Skip admits a call without a look at the limit, before Key is called: see
	// Methods. By default no call is skipped.
	Skip func(ctx context.Context, c Call) bool

	// Refund says by the status that a call ends with whether its Cost goes
	// back: see Codes. It is not asked about refused calls, and what messages
	// have cost stays charged. By default nothing goes back.
	Refund func(code codes.Code) bool

	// RecvCost is how many tokens a message of a stream costs that the client
	// has sent, the one request of a server-streaming call included; by default
	// none. It is called for every message, so it should be quick.
	RecvCost func(c Call, message any) int64

	// SendCost is the same for messages of a stream to the client.
	SendCost func(c Call, message any) int64

	// WaitMessages makes messages wait for their tokens. By default a message
	// that finds none ends the stream with RESOURCE_EXHAUSTED. Waiting in Recv
	// slows the client down, by gRPC's flow control.
	WaitMessages bool

	// Metadata is the prefix of the metadata keys, by default DefaultMetadata,
	// in lower case. Limiters in a chain need different ones. "-" sends none.
	Metadata string

	// Pushback, if more than 0, tells clients that have a gRPC retry policy for
	// RESOURCE_EXHAUSTED when to retry: after RetryAfter if that is at most
	// Pushback, and never if it is more. By default they go by their policy.
	Pushback time.Duration
}

// DefaultMetadata is the default of Server.Metadata.
const DefaultMetadata = "x-ratelimit"

// Unary returns the interceptor of unary calls, for grpc.ChainUnaryInterceptor.
// It panics if Limiter or Key is nil.
func (s Server) Unary() grpc.UnaryServerInterceptor {
	s.mustBeSet()
	return s.unary
}

// Stream returns the interceptor of streams, for grpc.ChainStreamInterceptor. It
// panics if Limiter or Key is nil.
func (s Server) Stream() grpc.StreamServerInterceptor {
	s.mustBeSet()
	return s.stream
}

func (s *Server) mustBeSet() {
	if s.Limiter == nil || s.Key == nil {
		panic("grpclimit: a Server needs a Limiter and a Key")
	}
	if s.Metadata == "" {
		s.Metadata = DefaultMetadata
	}
}

// paid is what a call was charged; nothing if key is "".
type paid struct {
	key    string
	result reservoir.Result
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c := Call{Method: info.FullMethod, Request: req}
	if s.skips(ctx, c) {
		return handler(ctx, req)
	}
	p, err := s.admit(ctx, c, answer{
		header:  func(md metadata.MD) { _ = grpc.SetHeader(ctx, md) },
		trailer: func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) },
	})
	if err != nil {
		return nil, err
	}
	reply, err := handler(ctx, req)
	s.settle(ctx, p, err)
	return reply, err
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, c := stream.Context(), Call{Method: info.FullMethod, Stream: true}
	if s.skips(ctx, c) {
		return handler(srv, stream)
	}
	p, err := s.admit(ctx, c, answer{
		header:  func(md metadata.MD) { _ = stream.SetHeader(md) },
		trailer: stream.SetTrailer,
	})
	if err != nil {
		return err
	}
	if s.RecvCost != nil || s.SendCost != nil {
		stream = &serverStream{ServerStream: stream, server: s, call: c, key: p.key}
	}
	err = handler(srv, stream)
	s.settle(ctx, p, err)
	return err
}

func (s *Server) skips(ctx context.Context, c Call) bool { return s.Skip != nil && s.Skip(ctx, c) }

// answer is where metadata goes: of an admitted call into the header, and of a
// refused one into the trailer. A header would make a client take the call for
// begun, which gRPC's retry policies then leave alone.
type answer struct {
	header, trailer func(metadata.MD)
}

// admit charges a call, or returns the status that it ends with.
func (s *Server) admit(ctx context.Context, c Call, a answer) (paid, error) {
	key, err := s.Key(ctx, c)
	if err != nil {
		return paid{}, err
	}
	n := costOf(ctx, s.Cost, c)
	if n <= 0 {
		return paid{key: key}, nil
	}
	r, err := s.Limiter.AllowN(ctx, key, n)
	if err != nil {
		return paid{}, failure(err)
	}
	if !r.Allowed {
		a.trailer(s.describe(r))
		return paid{}, refusal(r)
	}
	if md := s.describe(r); len(md) > 0 {
		a.header(md)
	}
	return paid{key: key, result: r}, nil
}

func costOf(ctx context.Context, cost func(context.Context, Call) int64, c Call) int64 {
	if cost == nil {
		return 1
	}
	return cost(ctx, c)
}

// settle gives back what a call has cost if it ended so. The caller may be gone,
// but its tokens are not. If the store cannot be told they are lost until the
// window ends; the limiter's hooks hear of it.
func (s *Server) settle(ctx context.Context, p paid, err error) {
	if s.Refund != nil && s.Refund(codeOf(err)) {
		_ = s.Limiter.Refund(context.WithoutCancel(ctx), p.key, p.result)
	}
}
