// Package grpclimit limits gRPC calls by a reservoir.Limiter, or by a reservoir.Group.
//
// # Servers
//
//	limits := grpclimit.Server{Limiter: limiter, Key: grpclimit.ByPeer}
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(limits.Unary()),
//		grpc.ChainStreamInterceptor(limits.Stream()))
//
// A call is charged before its handler runs: one token, or what Server.Cost says.
// A stream is charged once when it is opened and, if Server.RecvCost or SendCost
// is set, for each message. Nearly every call is decided in memory; see package
// reservoir.
//
// A client learns how it stands from metadata:
//
//	x-ratelimit-limit      tokens per window
//	x-ratelimit-remaining  what is left in this window, as Result.Remaining is
//	x-ratelimit-reset      the end of the window in Unix seconds, rounded up
//
// They are in the header of a call that is admitted, and in the trailer of one
// that is refused. A refusal has the status RESOURCE_EXHAUSTED with a
// google.rpc.RetryInfo, and is an answer of trailers only, so that the retry
// policies of gRPC clients can act on it; Server.Pushback tells them when. Of a Group
// they are the numbers of the limit that refused or, of those that admitted, of the one
// with the smallest part remaining. A call without limit has none of them.
//
// How a call ends that is not admitted:
//
//	RESOURCE_EXHAUSTED   it found no tokens: retry after RetryInfo
//	UNAVAILABLE          the store is away and the policy is FailClosed, or the limiter is closed
//	INVALID_ARGUMENT     it costs more than the whole limit, or its key is empty or too long
//	DEADLINE_EXCEEDED,
//	CANCELLED            its own context ended while it asked the store
//	INTERNAL             the limiter is set up wrongly
//	Server.Blocked       its limit is no tokens at all, if that is set
//
// and with the status that the KeyFunc returns if that fails. What went wrong
// with the store is not told to clients; the limiter's hooks hear it.
//
// What a call has cost can go back by the status that it ends with, so that
// failures of the server do not count against its clients:
//
//	Refund: grpclimit.Codes(codes.Internal, codes.Unavailable)
//
// Several limits that a call must pass together are a Group, which charges all of them
// or none. Where they differ in more than keys and costs they are several interceptors in
// the chain, each with a Metadata prefix of its own. The first that refuses ends the call, and what earlier ones
// have charged stays charged unless their Refund says otherwise for
// RESOURCE_EXHAUSTED.
//
// # Clients
//
//	limits := grpclimit.Client{Limiter: limiter}
//	conn, err := grpc.NewClient(target,
//		grpc.WithChainUnaryInterceptor(limits.Unary()),
//		grpc.WithChainStreamInterceptor(limits.Stream()))
//
// Calls wait until they may be sent, first come first served, through as many
// windows as it takes and their context allows.
package grpclimit
