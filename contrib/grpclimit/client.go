package grpclimit

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"

	"github.com/go-reservoir/reservoir"
)

// Client makes outgoing calls wait until they may be sent, so that all processes together
// keep to a limit that another server sets. Set Limiter, or Group and Keys; all other
// fields may stay zero. Their meaning is that of [Server]'s, except that a call, or a
// message, waits for its tokens. Do not change a Client after Unary or Stream.
//
// A call that cannot be sent before its deadline fails at once with DEADLINE_EXCEEDED. A
// call that gRPC itself retries is charged once.
type Client struct {
	Limiter *reservoir.Limiter
	Group   *reservoir.Group
	Key     KeyFunc // by default ByTarget
	Keys    []KeyFunc
	Cost    CostFunc
	Costs   []CostFunc
	Skip    func(ctx context.Context, c Call) bool

	// SendCost returns how many tokens a message sent on a stream costs, in addition to Cost
	// for the stream, at every limit of a Group; by default none. SendMsg waits for them; if
	// it fails, the stream has ended.
	SendCost func(c Call, message any) int64

	limits limits // made of the above
}

// Unary returns the interceptor of unary calls, for grpc.WithChainUnaryInterceptor. It
// panics unless c has either a Limiter, or a Group with Keys for all its limits.
func (c Client) Unary() grpc.UnaryClientInterceptor {
	c.complete()
	return c.unary
}

// Stream returns the interceptor of streams, for grpc.WithChainStreamInterceptor.
// It panics like Unary.
func (c Client) Stream() grpc.StreamClientInterceptor {
	c.complete()
	return c.stream
}

func (c *Client) complete() {
	if c.Key == nil && c.Group == nil {
		c.Key = ByTarget
	}
	c.limits = choose(c.Limiter, c.Group, c.Key, c.Keys, c.Cost, c.Costs)
}

func (c *Client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, err := c.wait(ctx, Call{Method: method, Request: req, Target: cc.Target()}); err != nil {
		return err
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	call := Call{Method: method, Stream: true, Target: cc.Target()}
	names, err := c.wait(ctx, call)
	if err != nil {
		return nil, err
	}
	if names == nil || c.SendCost == nil {
		return open(ctx, desc, cc, method, opts...)
	}
	ctx, end := context.WithCancelCause(ctx)
	opts = append(slices.Clip(opts), grpc.OnFinish(func(error) { end(errFinished) })) // clipped, because another call may share opts
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		end(err)
		return nil, err
	}
	return &clientStream{ClientStream: stream, client: c, call: call, names: names, ctx: ctx, end: end}, nil
}

// wait returns once the call may be sent, with the names that it is charged to, or nil if
// it is skipped.
func (c *Client) wait(ctx context.Context, call Call) (names []string, err error) {
	names, costs, err := c.limits.of(ctx, call, c.Skip)
	if costs != nil {
		err = c.limits.wait(ctx, names, costs)
	}
	return names, err
}

// clientStream makes a stream's messages wait.
type clientStream struct {
	grpc.ClientStream
	client *Client
	call   Call
	names  []string
	ctx    context.Context // ends with the stream; the stream's own Context() would end gRPC's retries
	end    context.CancelCauseFunc
}

// errFinished is the cause of a stream's context if the stream has ended by itself.
var errFinished = errors.New("the stream has ended")

// SendMsg ends the stream if it fails, as every SendMsg does: if the method sends only one
// message, the caller has no stream to end. If the stream has ended by itself, gRPC's own
// SendMsg returns what callers expect then: io.EOF, and RecvMsg knows why.
func (s *clientStream) SendMsg(message any) error {
	limits := &s.client.limits
	if n := s.client.SendCost(s.call, message); n > 0 {
		if err := limits.wait(s.ctx, s.names, limits.each(n)); err != nil && context.Cause(s.ctx) != errFinished {
			s.end(err)
			return err
		}
	}
	return s.ClientStream.SendMsg(message)
}
