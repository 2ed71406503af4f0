package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotReplicated is wrapped by the failure of a call that was carried out, but
// whose charge too few replicas had in time: see WithReplicaAck.
var ErrNotReplicated = errors.New("charged, but not known to be on enough replicas")

// WithReplicaAck makes tokens usable only once n replicas of the server that
// charged them have the charge: a failover to one of those, however far it lagged
// when the server died, forgets nothing that was spent. By default a failover may
// forget the last moments, and as many tokens may be admitted once more.
//
// Sync, Take and Reset then cost a WAIT in the same pipeline, and some more of the network's
// round trips. Callers do not see that where their key is restocked ahead of need.
//
// When fewer have it after timeout the call
// fails: backend.Unknown, for the server has charged it, with an error that wraps
// ErrNotReplicated. What a Sync was granted then is handed over by a later statement,
// once that is replicated; what a Take was charged is lost until the window ends; the
// window of a Reset stays, unless a failover forgets it. A
// fleet without its replicas has no new tokens: n should be one less than there are
// replicas, or one of two. While a slot of a cluster moves, its keys may be
// backend.Unavailable, with KeyOnly.
//
// n is at least 1 and timeout at least a millisecond. Choose a timeout above the
// replicas' usual delay and below the limiter's fetch timeout and the client's
// ReadTimeout. The client is a *redis.Client, Sentinel's included, or a
// *redis.ClusterClient; the user needs the right to WAIT.
func WithReplicaAck(n int, timeout time.Duration) Option {
	return func(s *Store) { s.ack, s.acked = ack{n, timeout}, true }
}

// ack is how many replicas must have a charge, and how long that may take. The
// zero ack asks for none.
type ack struct {
	replicas int
	timeout  time.Duration
}

func (a ack) validate(client redis.UniversalClient) error {
	if a.replicas < 1 || a.timeout < time.Millisecond {
		return errAckRange
	}
	switch client.(type) {
	case *redis.Client, *redis.ClusterClient:
		return nil
	}
	return errAckClient
}

// concerns reports whether one of the calls may hand out tokens, or open a window that has them.
func (a ack) concerns(calls []*call) bool {
	return a.replicas > 0 && slices.ContainsFunc(calls, func(c *call) bool { return slices.Contains(ackScripts, c.script) })
}

var ackScripts = []*script{syncScript, takeScript, resetScript}

// handsOut reports whether what the call has done must be on replicas.
func (c *call) handsOut() bool {
	v := c.cmd.Val()
	if !c.script.replies(len(v)) {
		return false
	}
	switch c.script {
	case syncScript:
		return v[5] > 0
	case takeScript:
		return v[0]&flagAllowed != 0
	case resetScript:
		return v[2] != 0 && v[4] == 0
	}
	return false
}

// send is a pipeline of the calls and WAIT, which speaks of what its connection has
// written. A statement that only hands over an earlier grant writes its account anew
// (sync.lua), so that there is something to speak of. A cluster's client would send
// WAIT to any node: its calls, one each, go by their node's.
func (a ack) send(ctx context.Context, client redis.UniversalClient, calls []*call, cmds []redis.Cmder) {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		node, err := cluster.MasterForKey(ctx, calls[0].tag)
		if err != nil {
			calls[0].cmd.SetErr(err)
			return
		}
		client = node
	}
	wait := redis.NewIntCmd(ctx, "wait", a.replicas, a.timeout.Milliseconds())
	pipeline(ctx, client, calls, append(cmds, wait)...)
	reached, err := wait.Result()
	if err == nil && reached >= int64(a.replicas) {
		return
	}
	for _, c := range calls {
		if c.handsOut() {
			c.cmd.SetErr(fmt.Errorf("%w: %d of %d, %v", ErrNotReplicated, reached, a.replicas, err)) // of err only the text: the script has run
		}
	}
}
