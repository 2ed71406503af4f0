package grpclimit

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/go-reservoir/reservoir"
)

// describe returns r as metadata, or none if r is unlimited or blocked.
func (s *Server) describe(r reservoir.Result) metadata.MD {
	md := metadata.MD{}
	if s.Metadata != "-" && r.Limit != reservoir.Unlimited().Tokens && !blocked(r) {
		md.Set(s.Metadata+"-limit", strconv.FormatInt(r.Limit, 10))
		md.Set(s.Metadata+"-remaining", strconv.FormatInt(r.Remaining, 10))
		md.Set(s.Metadata+"-reset", strconv.FormatInt(seconds(r.Reset), 10))
	}
	return md
}

// seconds returns t in Unix time, rounded up, so that a client does not come back early.
func seconds(t time.Time) int64 { return (t.UnixMilli() + 999) / 1000 }

// blocked reports whether the limit is Block, so that no waiting helps.
func blocked(r reservoir.Result) bool { return r.Limit == 0 }

// refusal returns the status of a call that finds no tokens.
func refusal(r reservoir.Result) error {
	if blocked(r) {
		return status.Error(codes.ResourceExhausted, "blocked")
	}
	info := &errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)}
	st, _ := status.New(codes.ResourceExhausted, "rate limit exceeded").WithDetails(info) // it fails only for OK
	return st.Err()
}

// failure returns the status of a call about which no decision was made. It does not
// show clients the errors of the store.
func failure(err error) error {
	_, away := errors.AsType[*reservoir.StoreError](err)
	switch {
	case err == nil:
		return nil
	case away, errors.Is(err, reservoir.ErrClosed): // first, because it may wrap the end of another context
		return status.Error(codes.Unavailable, "rate limiter unavailable")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case errors.Is(err, reservoir.ErrMaxWaiting):
		return status.Error(codes.ResourceExhausted, "too many calls wait for the rate limit")
	case errors.Is(err, reservoir.ErrExceedsLimit):
		return status.Error(codes.InvalidArgument, "costs more than the rate limit")
	case errors.Is(err, reservoir.ErrKey):
		return status.Error(codes.InvalidArgument, "empty or overlong rate limit key")
	}
	return status.Error(codes.Internal, "rate limiter misconfigured")
}

// codeOf returns the status code that gRPC sends for a handler's error.
func codeOf(err error) codes.Code {
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return status.FromContextError(err).Code()
}

// Codes returns a Server.Refund that gives back the cost of calls that end with one of
// these status codes.
func Codes(of ...codes.Code) func(codes.Code) bool {
	return func(c codes.Code) bool { return slices.Contains(of, c) }
}
