package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotReplicated means that a call was carried out, but too few replicas had its
// charge in time. See [WithReplicaAck].
var ErrNotReplicated = errors.New("charged, but not acknowledged by enough replicas")

// WithReplicaAck makes tokens usable only after n replicas have acknowledged their
// charge. A failover to one of these replicas loses no token that was spent. Without
// WithReplicaAck a failover may lose the most recent charges, so that as many tokens may
// be admitted again.
//
// Sync and Reset each need a WAIT in the same pipeline, and more round trips of the
// network. Callers do not notice that while their key is restocked ahead of need.
//
// If fewer replicas have acknowledged after timeout, the call fails with an error that
// wraps [ErrNotReplicated], of class backend.Unknown because the server has charged it. The
// client's next statement takes back the tokens of such a Sync and asks anew. What was charged without an account
// stays charged until the window ends. Such a Reset holds, unless a failover loses it. While too few replicas are up, nobody gets new tokens, so n
// should be one less than the number of replicas, as in 1 of 2. While a slot of a cluster
// moves, calls for its keys may be backend.Unavailable, with KeyOnly.
//
// n is at least 1 and timeout at least a millisecond. Choose a timeout above the
// replicas' usual delay and below the limiter's fetch timeout and the client's
// ReadTimeout. The client must be a *redis.Client (Sentinel's is one) or a
// *redis.ClusterClient; its user needs the right to WAIT.
func WithReplicaAck(n int, timeout time.Duration) Option {
	return func(s *Store) { s.ack = &ack{n, timeout} }
}

// ack is the number of replicas that must have a charge, and how long to wait for them.
type ack struct {
	replicas int
	timeout  time.Duration
}

func (a *ack) validate(client redis.UniversalClient) error {
	_, single := client.(*redis.Client)
	_, cluster := client.(*redis.ClusterClient)
	switch {
	case a == nil:
		return nil
	case a.replicas < 1 || a.timeout < time.Millisecond:
		return errAckRange
	case !single && !cluster:
		return errAckClient
	}
	return nil
}

// concerns reports whether one of the calls may hand out tokens, or open a window that has them.
func (a *ack) concerns(calls []*call) bool {
	return a != nil && slices.ContainsFunc(calls, func(c *call) bool { return c.script.handsOut != nil })
}

// send sends the calls and a WAIT in one pipeline, because WAIT covers the writes of its
// own connection. It returns an error if too few replicas have these writes. A cluster's client would send WAIT to any node, so its calls, which
// come one at a time, go to their node's client.
func (a *ack) send(ctx context.Context, client redis.UniversalClient, calls []*call) error {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		node, err := cluster.MasterForKey(ctx, calls[0].tag())
		if err != nil {
			calls[0].cmd.SetErr(err)
			return nil
		}
		client = node
	}
	wait := redis.NewIntCmd(ctx, "wait", a.replicas, a.timeout.Milliseconds())
	pipeline(ctx, client, calls, wait)
	reached, err := wait.Result()
	switch {
	case err != nil: // not wrapped, because the script may have run
		return fmt.Errorf("%w: %v", ErrNotReplicated, redact(err))
	case reached < int64(a.replicas):
		return fmt.Errorf("%w: %d of %d", ErrNotReplicated, reached, a.replicas)
	}
	return nil
}
