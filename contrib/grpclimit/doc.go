// Package grpclimit limits gRPC calls with a [reservoir.Limiter].
//
// # Servers
//
//	limits := grpclimit.Server{Limiter: limiter, Key: grpclimit.ByPeer}
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(limits.Unary()),
//		grpc.ChainStreamInterceptor(limits.Stream()))
//
// A call is charged before its handler runs: one token, or the result of Server.Cost.
// A stream is charged once, when it is opened. Most calls are decided in memory; see package
// reservoir.
//
// Metadata shows a client the state of its limit:
//
//	x-ratelimit-limit      tokens per window
//	x-ratelimit-remaining  tokens left in this window, as in Result.Remaining
//	x-ratelimit-reset      the end of the window in Unix seconds, rounded up
//
// If the limit is [reservoir.Limit.Rolling], the reset is when all of it is free again at the
// latest. RetryInfo says when something is.
//
// These keys are in the header of an admitted call and in the trailer of a refused one. A
// refusal has the status RESOURCE_EXHAUSTED with a google.rpc.RetryInfo. It has only
// trailers, so that the retry policies of gRPC clients can act on it. A call without a limit
// or of a blocked key has none of these keys.
//
// A call that is not admitted ends with one of these statuses:
//
//	RESOURCE_EXHAUSTED   it found no tokens: retry after RetryInfo; its key is blocked if there is none
//	UNAVAILABLE          the store is away and no failure policy is set, or the limiter is closed
//	INVALID_ARGUMENT     it costs more than the whole limit, its key is empty or too long, or
//	                     ByMetadata finds several values
//	DEADLINE_EXCEEDED,
//	CANCELLED            its own context ended while it asked the store
//	INTERNAL             the limiter is set up wrongly
//
// Clients do not see the errors of the store; the limiter's hooks do.
//
// The cost of a call can go back, depending on its final status, so that failures of the
// server do not count against its clients:
//
//	Refund: grpclimit.Codes(codes.Internal, codes.Unavailable)
//
// For several limits, chain interceptors, each with a Metadata prefix of its own. The first
// one that refuses ends the call. The charges of earlier ones stay, unless their Refund
// returns true for RESOURCE_EXHAUSTED.
//
// # Clients
//
//	limits := grpclimit.Client{Limiter: limiter}
//	conn, err := grpc.NewClient(target,
//		grpc.WithChainUnaryInterceptor(limits.Unary()),
//		grpc.WithChainStreamInterceptor(limits.Stream()))
//
// Calls wait until they may be sent, first come, first served, through as many windows as
// they need and their contexts allow.
package grpclimit
