package grpclimit

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/go-reservoir/reservoir"
)

// Server limits the calls that a gRPC server gets. Set Limiter and Key, or Group and
// Keys; all else may stay zero. Change nothing once an interceptor was made of it.
type Server struct {
	// Limiter decides. The interceptors do not close it.
	Limiter *reservoir.Limiter

	// Group decides instead of Limiter, by Keys and Costs: a call is charged to all of
	// its limits or to none.
	Group *reservoir.Group

	// Key names who a call counts for.
	Key KeyFunc

	// Keys are the same for a Group: one for each limit, in its order.
	Keys []KeyFunc

	// Cost is how many tokens a call costs, at every limit of a Group; by default
	// one. A call that costs nothing (or less) is admitted without a look at the limit.
	Cost CostFunc

	// Costs, one for each limit of a Group, are instead of Cost. A limit that a call costs
	// nothing is not asked.
	Costs []CostFunc

	// Skip admits a call without a look at the limit, before Key is called: see
	// Methods. By default no call is skipped.
	Skip func(ctx context.Context, c Call) bool

	// Refund says by the status that a call ends with whether its Cost goes
	// back: see Codes. It is not asked about refused calls, and what messages
	// have cost stays charged. By default nothing goes back.
	Refund func(code codes.Code) bool

	// RecvCost is how many tokens a message of a stream costs that the client
	// has sent, the one request of a server-streaming call included, at every limit
	// of a Group; by default none. It is called for every message, so it should be quick.
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

	// Blocked, if it is not OK, is the status of calls whose limit has no tokens at all
	// (reservoir.Limit{}), such as codes.PermissionDenied. It says nothing of a retry.
	// By default they are refused as others are.
	Blocked codes.Code

	limits limits // made of the above
}

// DefaultMetadata is the default of Server.Metadata.
const DefaultMetadata = "x-ratelimit"

// Unary returns the interceptor of unary calls, for grpc.ChainUnaryInterceptor.
// It panics if it is not set what decides, and by what key.
func (s Server) Unary() grpc.UnaryServerInterceptor {
	s.complete()
	return s.unary
}

// Stream returns the interceptor of streams, for grpc.ChainStreamInterceptor. It
// panics as Unary does.
func (s Server) Stream() grpc.StreamServerInterceptor {
	s.complete()
	return s.stream
}

func (s *Server) complete() {
	s.limits = choose(s.Limiter, s.Group, s.Key, s.Keys, s.Cost, s.Costs)
	if s.Metadata == "" {
		s.Metadata = DefaultMetadata
	}
}

// paid is what a call was charged, and to whom.
type paid struct {
	names  []string
	result reservoir.GroupResult
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
		stream = &serverStream{ServerStream: stream, server: s, call: c, names: p.names}
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
	names, err := s.limits.name(ctx, c)
	if err != nil {
		return paid{}, err
	}
	prices := s.limits.price(ctx, c)
	if prices == nil {
		return paid{names: names}, nil
	}
	r, err := s.limits.allow(ctx, names, prices)
	if err != nil {
		return paid{}, failure(err)
	}
	if !r.Allowed {
		a.trailer(s.describe(r.Result))
		return paid{}, s.refusal(r.Result)
	}
	if md := s.describe(r.Result); len(md) > 0 {
		a.header(md)
	}
	return paid{names, r}, nil
}

// settle gives back what a call has cost if it ended so. The caller may be gone,
// but its tokens are not. If the store cannot be told they are lost until the
// window ends; the limiter's hooks hear of it.
func (s *Server) settle(ctx context.Context, p paid, err error) {
	if s.Refund != nil && s.Refund(codeOf(err)) {
		_ = s.limits.refund(context.WithoutCancel(ctx), p.names, p.result)
	}
}
