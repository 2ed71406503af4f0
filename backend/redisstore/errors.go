package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
)

// Faults of the set-up. New records them; Err and every call return them.
var (
	errNoClient  = errors.New("no redis client")
	errRing      = errors.New("redis.Ring moves keys to other shards when one is away, which gives them a second limit: use one store per shard and the sharding package")
	errAckRange  = errors.New("WithReplicaAck wants 1 replica or more, and 1 ms or more to wait for them")
	errAckClient = errors.New("WithReplicaAck needs a *redis.Client or a *redis.ClusterClient: another client may send WAIT to another server than the script")
	errClosed    = errors.New("the store is closed")
	errPrefix    = errors.New("a prefix has no braces, blanks or control characters")
)

// errMoves is what Inspect returns about a key that is on its way to another node, or there.
var errMoves = redacted("TRYAGAIN: the key's slot moves to another node")

// errNode is MOVED to a client that follows no redirection. It does not name the other node.
var errNode = redacted("MOVED: the server is a node of a Redis Cluster, and this client sends all keys to it: use a redis-cluster:// URL, or a redis.ClusterClient")

// errLate means that a script arrived after its deadline and did nothing.
var errLate = errors.New("the server got the command too late")

// errExpired is errLate where the caller's own time is over: its context's error.
var errExpired = fmt.Errorf("%w: %w", context.DeadlineExceeded, errLate)

// fault is a kind of failure and what it means.
type fault struct {
	class   backend.Class    // what the command may have done
	says    []string         // the first words of the server's text, after "ERR " if that is the first
	is      func(error) bool // or a test of the error
	keyOnly bool             // it concerns the key or its slot: the server serves other keys
	reload  bool             // another node of a cluster may serve
}

// faults is the table of errors; the first row that matches applies.
var faults = []fault{
	// Carried out, but a failover may lose it.
	{class: backend.Unknown, is: isAny(ErrNotReplicated)},

	// Surely not applied: the script came too late, or the server will serve soon. The
	// group has already acted on MOVED, ASK and NOSCRIPT where it could.
	{class: backend.Unavailable, is: isAny(errLate)},
	{class: backend.Rejected, is: isAny(errNode), keyOnly: true}, // it serves the keys of its own slots
	{class: backend.Unavailable, says: []string{"CLUSTERDOWN Hash slot not served", "MOVED", "ASK"}, reload: true, keyOnly: true},
	{class: backend.Unavailable, says: []string{"LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY"}, reload: true},
	{class: backend.Unavailable, says: []string{"TRYAGAIN"}, keyOnly: true},
	{class: backend.Unavailable, says: []string{"NOREPLICAS", "max number of clients", "BUSY", "NOSCRIPT"}},

	// A key has expired in the middle of a script, while its slot is moving.
	{class: backend.Unknown, says: []string{"Script attempted to access a non local key"}, keyOnly: true},

	// Surely not applied, and an operator must act. The scripts read and check all before
	// they write, a full server refuses before that, and a window opens last. If the user
	// lacks the right to a command, a sync may stop after some writes and lose its tokens
	// until the window ends, and a reset may lose the ledger. Both admit less, never more.
	// BADSTATE is from our scripts: a stored value has the wrong form.
	{class: backend.Rejected, says: []string{"CROSSSLOT", "WRONGTYPE", "BADSTATE"}, keyOnly: true},
	{class: backend.Rejected, is: isReply}, // OOM, MISCONF, NOPERM, NOAUTH, WRONGPASS and all others
	{class: backend.Rejected, is: isAny(redis.ErrClosed)},
	{class: backend.Rejected, is: isHandshake},

	// The caller has left, which says nothing about the server.
	{class: backend.Unknown, is: isAny(context.Canceled)},
	// No answer, or an invalid one.
	{class: backend.Unknown, is: func(error) bool { return true }, reload: true},
}

// faultOf returns the first row that matches. A call that was never written surely was
// not carried out.
func faultOf(err error) fault {
	i := slices.IndexFunc(faults, func(f fault) bool {
		return f.is != nil && f.is(err) || slices.ContainsFunc(f.says, func(words string) bool { return redis.HasErrorPrefix(err, words) })
	})
	f := faults[i]
	if _, ok := errors.AsType[unsent](err); ok && f.class == backend.Unknown {
		f.class = backend.Unavailable
	}
	return f
}

// failure returns the error of a call, and looks for another node if that may help.
func (s *Store) failure(op string, err error) *backend.Error {
	if _, plain := s.client.(*redis.Client); plain && redis.HasErrorPrefix(err, "MOVED") {
		err = errNode
	}
	f := faultOf(err)
	s.reload(f)
	return &backend.Error{Op: op, Class: f.class, Err: err, KeyOnly: f.keyOnly}
}

// reading is failure for a command that changes nothing: a lost reply leaves no doubt of what
// it did. It returns nil for nil.
func (s *Store) reading(op string, err error) error {
	if err == nil {
		return nil
	}
	return s.failure(op, unsent{redact(err)})
}

// blame adds to an error what of the client has ended the call before its context, or has held it up: a timeout of
// the client, or a pool whose connections others use.
func blame(ctx context.Context, client redis.UniversalClient, err error) error {
	timeout, ok := errors.AsType[net.Error](err)
	if at, bounded := ctx.Deadline(); ok && timeout.Timeout() && ctx.Err() == nil && !(bounded && time.Now().After(at)) {
		option := "ReadTimeout" // a handshake's error does not say
		if network, ok := errors.AsType[*net.OpError](err); ok && network.Op == "dial" {
			option = "DialTimeout"
		}
		return fmt.Errorf("%w: no answer within the client's %s", err, option)
	}
	full := exhausted(client)
	if _, early := errors.AsType[unsent](err); early && full != nil {
		return fmt.Errorf("%w: %w", err, full)
	}
	return err
}

// exhausted returns an error if all connections of the client are in use.
func exhausted(client redis.UniversalClient) error {
	if c, ok := client.(*redis.Client); ok {
		if size, now := c.Options().PoolSize, c.PoolStats(); int(now.TotalConns) >= size && now.IdleConns == 0 {
			return fmt.Errorf("all %d connections of the client's pool are in use: give the store a client of its own", size)
		}
	}
	return nil
}

// unsent is the error of a call that was never written.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

func isAny(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// isReply reports whether err is an error reply. redis.Nil is no reply of a script.
func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok && !errors.Is(err, redis.Nil)
}

// isHandshake reports whether a connection failed because of certificates, the version
// of TLS or plain text in place of TLS, so that somebody must act. An alert after the call
// was written does not count, because the server may have served the call before that.
func isHandshake(err error) bool {
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	var network *net.OpError
	_, early := errors.AsType[unsent](err)
	return early && (errors.As(err, &untrusted) || errors.As(err, &plain) || errors.As(err, &network) && network.Op == "remote error")
}

// redact returns err without the arguments that Redis repeats if it does not know a
// command. Keys name users, and the handshake of a new connection holds a password. All
// errors of a server go through redact before anything else sees them.
func redact(err error) error {
	text, _, repeats := strings.Cut(err.Error(), ", with args beginning with:")
	switch {
	case strings.HasPrefix(text, "ERR Protocol error: unauthenticated"): // NOAUTH to a command of many arguments
		text = "NOAUTH Authentication required."
	case !repeats:
		return err
	}
	return redacted(text)
}

// redacted is a server's error without a part of its text. It wraps nothing, so that nobody
// can unwrap it and print the rest.
type redacted string

func (redacted) RedisError() {}

func (r redacted) Error() string { return string(r) }
