package grpclimit

import (
	"context"

	"google.golang.org/grpc"

	"github.com/go-reservoir/reservoir"
)

// Client makes outgoing calls wait until they may be sent, so that all processes together
// keep to a limit that another server sets. Set Limiter; all other fields may stay zero.
// Their meaning is that of [Server]'s, except that a call waits for its tokens. A stream is
// charged once, when it is opened. Do not change a Client after Unary or Stream.
//
// A call that cannot be sent before its deadline fails at once with DEADLINE_EXCEEDED. A
// call that gRPC itself retries is charged once.
type Client struct {
	Limiter *reservoir.Limiter
	Key     KeyFunc // by default ByTarget
	Cost    CostFunc
}

// Unary returns the interceptor of unary calls, for grpc.WithChainUnaryInterceptor. It
// panics unless c has a Limiter.
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
	if c.Limiter == nil {
		panic("grpclimit: a Client needs a Limiter")
	}
	if c.Key == nil {
		c.Key = ByTarget
	}
}

func (c *Client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := c.wait(ctx, Call{Method: method, Request: req, Target: cc.Target()}); err != nil {
		return err
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := c.wait(ctx, Call{Method: method, Stream: true, Target: cc.Target()}); err != nil {
		return nil, err
	}
	return open(ctx, desc, cc, method, opts...)
}

// wait returns once the call may be sent.
func (c *Client) wait(ctx context.Context, call Call) error {
	cost := c.Cost.of(ctx, call)
	if cost < 1 {
		return nil
	}
	key, err := c.Key(ctx, call)
	if err == nil {
		_, err = c.Limiter.WaitN(ctx, key, cost)
		err = failure(err)
	}
	return err
}
