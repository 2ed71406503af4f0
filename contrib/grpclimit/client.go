package grpclimit

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// Client makes outgoing calls wait until they may be sent, so that all processes together
// keep to a limit that another server sets. Set Limiter; all other fields may stay zero.
// Their meaning is that of [Server]'s, except that a call waits for its tokens. A stream is
// charged once, when it is opened. Do not change a Client after Unary or Stream.
//
// A call that cannot be sent before its deadline fails at once with DEADLINE_EXCEEDED, and one
// that finds too many in line, by [reservoir.WithMaxWaiting], with RESOURCE_EXHAUSTED. A
// call that gRPC itself retries is charged once.
//
// If the server refuses a call nevertheless, with RESOURCE_EXHAUSTED and a RetryInfo, the Client
// holds the key for that time, by [reservoir.Limiter.Hold]: no process sends until then. The call
// gets its error.
type Client struct {
	Limiter *reservoir.Limiter
	Key     KeyFunc // by default ByTarget
	Cost    CostFunc

	// MaxHold bounds how long one answer can hold a key; a day by default, and at most 366 days. If it
	// is negative, no answer holds anything.
	MaxHold time.Duration
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
	key, err := c.wait(ctx, Call{Method: method, Request: req, Target: cc.Target()})
	if err != nil {
		return err
	}
	err = invoke(ctx, method, req, reply, cc, opts...)
	c.hold(ctx, key, err)
	return err
}

func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	key, err := c.wait(ctx, Call{Method: method, Stream: true, Target: cc.Target()})
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		c.hold(ctx, key, err)
		return nil, err
	}
	return &clientStream{s, c, key}, nil
}

// clientStream sees how its stream ends.
type clientStream struct {
	grpc.ClientStream
	client *Client
	key    string
}

func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.client.hold(s.Context(), s.key, err)
	return err
}

// wait returns once the call may be sent, with its key, which is "" if it costs nothing.
func (c *Client) wait(ctx context.Context, call Call) (key string, err error) {
	cost := c.Cost.of(ctx, call)
	if cost < 1 {
		return "", nil
	}
	if key, err = c.Key(ctx, call); err == nil {
		_, err = c.Limiter.WaitN(ctx, key, cost)
		err = failure(err)
	}
	return key, err
}

// hold holds the key if a call that ended with err was refused for a time that the server names. A hold that does not
// reach the store holds in this process, and goes along with what that states later.
func (c *Client) hold(ctx context.Context, key string, err error) {
	if status.Code(err) != codes.ResourceExhausted {
		return
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			d := min(info.GetRetryDelay().AsDuration(), cmp.Or(c.MaxHold, 24*time.Hour), backend.MaxWindow)
			_ = c.Limiter.Hold(ctx, key, d) // nothing, if d is 0 or less, or there is no key
		}
	}
}
