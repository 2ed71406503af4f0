package grpclimit

import (
	"cmp"
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/go-reservoir/reservoir"
)

// CostFunc returns how many tokens a call costs. A result below one means no cost. A
// CostFunc must be safe for concurrent use.
type CostFunc func(ctx context.Context, c Call) int64

// of returns what a call costs, which is one token if there is no CostFunc.
func (f CostFunc) of(ctx context.Context, c Call) int64 {
	if f == nil {
		return 1
	}
	return f(ctx, c)
}

// Server limits the calls that a gRPC server receives. Set Limiter and Key; all other
// fields may stay zero. Do not change a Server after Unary or Stream.
type Server struct {
	// Limiter decides. The interceptors do not close it.
	Limiter *reservoir.Limiter

	// Key names the client or other subject that a call is charged to.
	Key KeyFunc

	// Cost is how many tokens a call costs; by default one. A call that costs less than
	// one, such as a health check, is admitted without a check and without a key.
	Cost CostFunc

	// Refund reports whether the Cost of a call with this final status goes back: see
	// Codes. It is not called for refused calls, nor if the handler panics. By default
	// nothing goes back.
	Refund func(code codes.Code) bool

	// Metadata is the lower-case prefix of the metadata keys, by default DefaultMetadata.
	// Limiters in a chain need different prefixes. With "-" no metadata is sent.
	Metadata string
}

// DefaultMetadata is the default of Server.Metadata.
const DefaultMetadata = "x-ratelimit"

// Unary returns the interceptor of unary calls, for grpc.ChainUnaryInterceptor.
// It panics unless s has a Limiter and a Key.
func (s Server) Unary() grpc.UnaryServerInterceptor {
	s.complete()
	return s.unary
}

// Stream returns the interceptor of streams, for grpc.ChainStreamInterceptor. It
// panics like Unary.
func (s Server) Stream() grpc.StreamServerInterceptor {
	s.complete()
	return s.stream
}

func (s *Server) complete() {
	if s.Limiter == nil || s.Key == nil {
		panic("grpclimit: a Server needs a Limiter and a Key")
	}
	s.Metadata = cmp.Or(s.Metadata, DefaultMetadata)
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	err = s.limit(ctx, Call{Method: info.FullMethod, Request: req}, func() (err error) {
		reply, err = handler(ctx, req)
		return err
	})
	return reply, err
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return s.limit(stream.Context(), Call{Method: info.FullMethod, Stream: true}, func() error { return handler(srv, stream) })
}

// limit charges a call and runs it. Afterwards it gives the cost back if Refund says so, even
// if the caller has left: the limiter lets no context that has ended bound it. If that fails, the tokens are lost until the window ends, and
// the limiter's hooks see the error.
func (s *Server) limit(ctx context.Context, c Call, run func() error) error {
	cost := s.Cost.of(ctx, c)
	if cost < 1 {
		return run()
	}
	key, err := s.Key(ctx, c)
	if err != nil {
		return err
	}
	paid, err := s.charge(ctx, key, cost)
	if err != nil {
		return err
	}
	if md := s.describe(paid); len(md) > 0 {
		_ = grpc.SetHeader(ctx, md)
	}
	err = run()
	if s.Refund != nil && s.Refund(codeOf(err)) {
		_ = s.Limiter.Refund(ctx, paid)
	}
	return err
}

// charge returns an error status if the call is not admitted. The metadata of a refusal
// goes into the trailer. A header would show the call as begun, and the retry policies of
// gRPC do not retry such calls.
func (s *Server) charge(ctx context.Context, key string, cost int64) (reservoir.Result, error) {
	r, err := s.Limiter.AllowN(ctx, key, cost)
	if err != nil {
		return r, failure(err)
	}
	if !r.Allowed {
		_ = grpc.SetTrailer(ctx, s.describe(r))
		return r, refusal(r)
	}
	return r, nil
}
