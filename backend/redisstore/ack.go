package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotReplicated is wrapped by the failure of a call that was carried out, but
// whose charge too few replicas had in time: see WithReplicaAck.
var ErrNotReplicated = errors.New("charged, but not known to be on enough replicas")

// Faults of WithReplicaAck.
var (
	errAckRange  = errors.New("WithReplicaAck wants 1 replica or more, and 1 ms or more to wait for them")
	errAckClient = errors.New("WithReplicaAck needs a *redis.Client or a *redis.ClusterClient: others may send WAIT elsewhere than the script")
)

// WithReplicaAck makes tokens usable only once n replicas of the server that
// charged them have the charge: a failover to one of those, however far it lagged
// when the server died, forgets nothing that was spent. By default a failover may
// forget the last moments, and as many tokens may be admitted once more.
//
// Sync and Take then cost a WAIT in the same pipeline, some more of the network's
// round trips and no more commands from the replicas' side. Callers do not see
// that where their key is restocked ahead of need. Check and Refund are as ever.
//
// When fewer have it after timeout (or when the call's own time is over, if that
// is sooner), the call fails: backend.Unknown, for the server has charged it, with
// an error that wraps ErrNotReplicated. What a Sync was granted then is handed
// over by a later statement, once that is replicated; what a Take was charged is
// lost until the window ends. A fleet without its replicas has no new tokens: n
// should be one less than there are replicas, or one of two.
//
// n is at least 1 and timeout at least a millisecond. Choose a timeout above the replicas' usual delay and below the limiter's fetch
// timeout and the client's ReadTimeout. The client is a *redis.Client, Sentinel's
// included, or a *redis.ClusterClient; the user needs the right to WAIT.
//
// While slots of a cluster move to a node that the store has not met, the calls
// that follow them there go by connections of the store's own. Those have the
// client's options (ClusterOptions.NewClient makes them) and none of the hooks of
// ClusterClient.OnNewNode, and close when they have not been used for ten seconds.
func WithReplicaAck(n int, timeout time.Duration) Option {
	return func(s *Store) { s.ack, s.acked = ack{replicas: n, timeout: timeout}, true }
}

// ack is how many replicas must have a charge, and how long that may take. The
// zero ack asks for none.
type ack struct {
	replicas int
	timeout  time.Duration
	peers    *peers // of a cluster
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

// concerns reports whether one of the calls may hand out tokens.
func (a ack) concerns(calls []*call) bool {
	if a.replicas == 0 {
		return false
	}
	for _, c := range calls {
		if i := c.script.index; i == syncScript.index || i == takeScript.index {
			return true
		}
	}
	return false
}

// send sends the calls and waits for the replicas, on one connection: a server
// counts what that connection has written. A cluster's client would send WAIT to
// any node, so it is passed over. Each flight of its group has one call.
func (a ack) send(ctx context.Context, client redis.UniversalClient, calls []*call) {
	if node, ok := client.(*redis.Client); ok {
		if a.peers != nil {
			a.peers.learn(node)
		}
		a.exec(ctx, node, calls, false)
		return
	}
	for _, c := range calls {
		a.follow(ctx, c)
	}
}

// exec is a pipeline of the calls and WAIT, which promises to speak of what its
// connection has written. A statement that only hands over an earlier grant had
// nothing to write: it writes the account anew (sync.lua). Redis 7.0 would do
// without, for its WAIT speaks of all writes until then; nobody promises that.
func (a ack) exec(ctx context.Context, client *redis.Client, calls []*call, asking bool) {
	pipe := client.Pipeline()
	if asking {
		_ = pipe.Process(ctx, redis.NewStatusCmd(ctx, "asking"))
	}
	_ = pipe.BatchProcess(ctx, commands(calls)...)
	wait := redis.NewIntCmd(ctx, "wait", a.replicas, a.patience(calls).Milliseconds())
	_ = pipe.Process(ctx, wait)
	_, err := pipe.Exec(ctx)
	unanswered(calls, err)
	reached, err := wait.Result()
	if err == nil && reached >= int64(a.replicas) {
		return
	}
	for _, c := range calls {
		if c.cmd.Err() == nil && c.hands() {
			c.cmd.SetErr(a.missed(reached, err))
		}
	}
}

// patience is how long the server may wait. Zero would be for ever.
func (a ack) patience(calls []*call) time.Duration {
	d := a.timeout
	if deadline, ok := latest(calls); ok {
		d = min(d, time.Until(deadline))
	}
	return max(d, time.Millisecond)
}

// missed does not wrap err: whatever that says of WAIT, the script has run.
func (a ack) missed(reached int64, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %v", ErrNotReplicated, err)
	}
	return fmt.Errorf("%w: %d of %d", ErrNotReplicated, reached, a.replicas)
}

// hands reports whether the reply to the call hands out tokens.
func (c *call) hands() bool {
	v := c.cmd.Val()
	switch {
	case !c.script.replies(len(v)):
		return false
	case c.script.index == syncScript.index:
		return v[5] > 0
	case c.script.index == takeScript.index:
		return v[0]&flagAllowed != 0
	}
	return false
}

// redirections is how often one attempt follows MOVED and ASK.
const redirections = 3

// follow sends the call to its slot's master, and on to where that says.
func (a ack) follow(ctx context.Context, c *call) {
	node, err := a.peers.master(ctx, c.tag)
	if err != nil {
		c.cmd.SetErr(unsent{err})
		return
	}
	addr, asking, done := "", false, func() {}
	for range 1 + redirections {
		a.hop(ctx, node, done, c, asking)
		switch to, ask, ok := redirect(c.cmd.Err()); {
		case ok:
			addr, asking = to, ask
		case addr != "" && errors.Is(c.cmd.Err(), redis.ErrClosed): // nothing was sent
			a.peers.forget(node)
		default:
			return
		}
		if !asking {
			a.peers.moved()
		}
		node, done = a.peers.at(addr, node)
	}
	done()
}

// hop is done with the node even if a hook of go-redis panics.
func (a ack) hop(ctx context.Context, node *redis.Client, done func(), c *call, asking bool) {
	defer done()
	c.cmd = command{redis.NewIntSliceCmd(c.ctx, c.args[:c.nargs]...)}
	a.exec(ctx, node, []*call{c}, asking)
}
