package grpclimit

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"github.com/go-reservoir/reservoir"
)

// Client makes outgoing calls wait until they may be sent: for a limit that
// somebody else's server sets, and that all processes which call it keep to
// together. Set Limiter; all else may stay zero. Change nothing once an
// interceptor was made of it.
//
// A call that could not be sent before its deadline fails at once with
// DEADLINE_EXCEEDED. One that gRPC itself retries is charged once.
type Client struct {
	// Limiter decides. The interceptors do not close it.
	Limiter *reservoir.Limiter

	// Key names what a call counts for; by default ByTarget.
	Key KeyFunc

	// Cost is how many tokens a call costs; by default one. A call that costs
	// nothing (or less) does not wait.
	Cost func(ctx context.Context, c Call) int64

	// Skip lets a call pass without a look at the limit: see Methods.
	Skip func(ctx context.Context, c Call) bool

	// SendCost is how many tokens each message that a stream sends costs, on top
	// of Cost for the stream; by default none. SendMsg waits for them; if it
	// fails, the stream has ended.
	SendCost func(c Call, message any) int64
}

// Unary returns the interceptor of unary calls, for
// grpc.WithChainUnaryInterceptor. It panics if Limiter is nil.
func (c Client) Unary() grpc.UnaryClientInterceptor {
	c.mustBeSet()
	return c.unary
}

// Stream returns the interceptor of streams, for grpc.WithChainStreamInterceptor.
// It panics if Limiter is nil.
func (c Client) Stream() grpc.StreamClientInterceptor {
	c.mustBeSet()
	return c.stream
}

func (c *Client) mustBeSet() {
	if c.Limiter == nil {
		panic("grpclimit: a Client needs a Limiter")
	}
	if c.Key == nil {
		c.Key = ByTarget
	}
}

func (c *Client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, _, err := c.wait(ctx, Call{Method: method, Request: req, Target: cc.Target()}); err != nil {
		return err
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	call := Call{Method: method, Stream: true, Target: cc.Target()}
	key, limited, err := c.wait(ctx, call)
	if err != nil {
		return nil, err
	}
	if !limited || c.SendCost == nil {
		return open(ctx, desc, cc, method, opts...)
	}
	ctx, end := context.WithCancel(ctx)
	opts = append(slices.Clip(opts), grpc.OnFinish(func(error) { end() })) // they may be another call's too
	stream, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		end()
		return nil, err
	}
	return &clientStream{ClientStream: stream, client: c, call: call, key: key, ctx: ctx, end: end}, nil
}

// wait returns once the call may be sent. limited is false if the call is skipped.
func (c *Client) wait(ctx context.Context, call Call) (key string, limited bool, err error) {
	if c.Skip != nil && c.Skip(ctx, call) {
		return "", false, nil
	}
	if key, err = c.Key(ctx, call); err != nil {
		return "", false, err
	}
	return key, true, c.pay(ctx, key, costOf(ctx, c.Cost, call))
}

func (c *Client) pay(ctx context.Context, key string, n int64) error {
	if n <= 0 {
		return nil
	}
	if _, err := c.Limiter.WaitN(ctx, key, n); err != nil {
		return failure(err)
	}
	return nil
}

// clientStream makes a stream's messages wait.
type clientStream struct {
	grpc.ClientStream
	client *Client
	call   Call
	key    string
	ctx    context.Context // the stream's life; its own Context() would end gRPC's retries
	end    context.CancelFunc
}

// SendMsg ends the stream when it fails, as every SendMsg does: of a method that
// sends one message only, nobody has the stream then.
func (s *clientStream) SendMsg(message any) error {
	if err := s.client.pay(s.ctx, s.key, s.client.SendCost(s.call, message)); err != nil {
		s.end()
		return err
	}
	return s.ClientStream.SendMsg(message)
}
