package grpclimit

import (
	"cmp"
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/go-reservoir/reservoir"
)

// Server limits the calls that a gRPC server receives. Set Limiter and Key, or Group and
// Keys; all other fields may stay zero. Do not change a Server after Unary or Stream.
type Server struct {
	// Limiter decides. The interceptors do not close it.
	Limiter *reservoir.Limiter

	// Group decides instead of Limiter, by Keys and Costs: a call is charged to all of
	// its limits or to none.
	Group *reservoir.Group

	// Key names the client or other subject that a call is charged to.
	Key KeyFunc

	// Keys has a Key for each limit of Group, in its order.
	Keys []KeyFunc

	// Cost is how many tokens a call costs, at every limit of a Group; by default
	// one. A call that costs less than one is admitted without a check.
	Cost CostFunc

	// Costs replaces Cost for a Group, with one function for each limit. A limit that
	// costs the call less than one token is not checked.
	Costs []CostFunc

	// Skip admits a call without a check, before Key is called: see Methods. By default
	// no call is skipped.
	Skip func(ctx context.Context, c Call) bool

	// Refund reports whether the Cost of a call with this final status goes back: see
	// Codes. It is not called for refused calls, nor if the handler panics. By default
	// nothing goes back.
	Refund func(code codes.Code) bool

	// Metadata is the lower-case prefix of the metadata keys, by default DefaultMetadata.
	// Limiters in a chain need different prefixes. With "-" no metadata is sent.
	Metadata string

	// Blocked, if it is not OK, is the status of calls whose limit has no tokens at all
	// (reservoir.Limit{}), such as codes.PermissionDenied. It comes without RetryInfo.
	// By default such calls are refused like others.
	Blocked codes.Code

	limits limits // made of the above
}

// DefaultMetadata is the default of Server.Metadata.
const DefaultMetadata = "x-ratelimit"

// Unary returns the interceptor of unary calls, for grpc.ChainUnaryInterceptor.
// It panics unless s has a Limiter and a Key, or a Group with Keys for all its limits.
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
	s.limits = choose(s.Limiter, s.Group, s.Key, s.Keys, s.Cost, s.Costs)
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

// limit charges a call and runs it. Afterwards it gives the cost back if Refund says so,
// even if the caller has left. If that fails, the tokens are lost until the window ends, and
// the limiter's hooks see the error.
func (s *Server) limit(ctx context.Context, c Call, run func() error) error {
	names, costs, err := s.limits.of(ctx, c, s.Skip)
	if err != nil {
		return err
	}
	if costs == nil {
		return run()
	}
	paid, err := s.charge(ctx, names, costs)
	if err != nil {
		return err
	}
	if md := s.describe(paid.Result); len(md) > 0 {
		_ = grpc.SetHeader(ctx, md)
	}
	err = run()
	if s.Refund != nil && s.Refund(codeOf(err)) {
		_ = s.limits.group.Refund(context.WithoutCancel(ctx), paid, names...)
	}
	return err
}

// charge returns an error status if the call is not admitted. The metadata of a refusal
// goes into the trailer. A header would show the call as begun, and the retry policies of
// gRPC do not retry such calls.
func (s *Server) charge(ctx context.Context, names []string, costs []int64) (reservoir.GroupResult, error) {
	r, err := s.limits.group.AllowEach(ctx, costs, names...)
	if err != nil {
		return r, failure(err)
	}
	if !r.Allowed {
		_ = grpc.SetTrailer(ctx, s.describe(r.Result))
		return r, s.refusal(r.Result)
	}
	return r, nil
}
