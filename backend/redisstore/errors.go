package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
)

// Faults of the store's own set-up; New notes them, Err and every call return them.
var (
	errNoClient  = errors.New("no redis client")
	errRing      = errors.New("redis.Ring moves keys to other shards when one is away, which gives them a second limit: use one store per shard and the sharding package")
	errAckRange  = errors.New("WithReplicaAck wants 1 replica or more, and 1 ms or more to wait for them")
	errAckClient = errors.New("WithReplicaAck needs a *redis.Client or a *redis.ClusterClient: others may send WAIT elsewhere than the script")
	errClosed    = errors.New("the store is closed")
	errPrefix    = errors.New("a prefix has no braces, blanks or control characters")
)

// errLate is the answer of a script that was delivered after its time: it did nothing.
var errLate = errors.New("the server got the command too late")

// fault is a way in which commands fail, and what that means.
type fault struct {
	class   backend.Class // what the command may have done
	says    string        // how the server's text begins, in whole words; or
	is      func(error) bool
	keyOnly bool // it is about the key or its slot: other keys of the server are served
	reload  bool // another node of a cluster may serve
	free    bool // the first repetition is not of the budget
	final   bool // it is not said again, whatever the class
}

// faults is the table of errors: the first row that fits says what a failure means.
// Whether to repeat is decided by the class and the script (mayRepeat).
var faults = []fault{
	// Carried out, but not to be relied upon.
	{class: backend.Unknown, is: isAny(ErrNotReplicated), final: true},

	// Surely not applied: the script came too late, or the server will serve soon.
	// MOVED, ASK and NOSCRIPT are acted upon before they come here.
	{class: backend.Unavailable, is: isAny(errLate), free: true},
	{class: backend.Unavailable, says: "LOADING", reload: true},
	{class: backend.Unavailable, says: "MASTERDOWN", reload: true},
	{class: backend.Unavailable, says: "CLUSTERDOWN Hash slot not served", reload: true, keyOnly: true},
	{class: backend.Unavailable, says: "CLUSTERDOWN", reload: true},
	{class: backend.Unavailable, says: "TRYAGAIN", keyOnly: true},
	{class: backend.Unavailable, says: "MOVED", reload: true, keyOnly: true},
	{class: backend.Unavailable, says: "ASK", reload: true, keyOnly: true},
	{class: backend.Unavailable, says: "READONLY", reload: true},
	{class: backend.Unavailable, says: "NOREPLICAS"},
	{class: backend.Unavailable, says: "ERR max number of clients"},
	{class: backend.Unavailable, says: "BUSY"},
	{class: backend.Unavailable, says: "NOSCRIPT"},

	// In the middle of a script a key has expired, and the slot is on its way.
	{class: backend.Unknown, says: "ERR Script attempted to access a non local key", keyOnly: true},

	// Surely not applied, and an operator's. The scripts read and check all before
	// they write, a full server says so first, and a window opens last. What a right is
	// missing to in the middle of a sync is lost until the window ends, and where one is
	// missing to a reset, the ledger is: less is admitted, never more.
	{class: backend.Rejected, says: "OOM"},
	{class: backend.Rejected, says: "MISCONF"},
	{class: backend.Rejected, says: "NOPERM"},
	{class: backend.Rejected, says: "NOAUTH"},
	{class: backend.Rejected, says: "WRONGPASS"},
	{class: backend.Rejected, says: "CROSSSLOT", keyOnly: true},
	{class: backend.Rejected, says: "WRONGTYPE", keyOnly: true},
	{class: backend.Rejected, says: "BADSTATE", keyOnly: true}, // ours: a stored value is not what it should be
	{class: backend.Rejected, is: isReply},                     // whatever else a server says, it has refused by that
	{class: backend.Rejected, is: isAny(redis.ErrClosed)},
	{class: backend.Rejected, is: isHandshake},

	// The caller has left: that says nothing of the server.
	{class: backend.Unknown, is: isAny(context.Canceled)},
	// No answer, or none that makes sense.
	{class: backend.Unknown, is: func(error) bool { return true }, reload: true},
}

// faultOf returns the first row that fits. Of what was never written the outcome is known.
func faultOf(err error) fault {
	said := ""
	if server, ok := errors.AsType[redis.Error](err); ok {
		said = server.Error()
	}
	i := slices.IndexFunc(faults, func(f fault) bool { return f.is != nil && f.is(err) || f.says != "" && begins(said, f.says) })
	f := faults[i]
	if _, ok := errors.AsType[unsent](err); ok && f.class == backend.Unknown {
		f.class = backend.Unavailable
	}
	return f
}

// unsent is why a call was never written.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

// begins reports whether the text begins with these whole words.
func begins(text, words string) bool {
	rest, ok := strings.CutPrefix(text, words)
	return ok && (rest == "" || rest[0] == ' ')
}

func isAny(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// isReply leaves out redis.Nil, which is no answer of a script.
func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok && !errors.Is(err, redis.Nil)
}

// isHandshake reports whether a connection was refused for its certificates, its
// version of TLS or for speaking none: somebody must act. An alert that comes when a
// call was written may be the end of a connection that has served it.
func isHandshake(err error) bool {
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	var network *net.OpError
	_, early := errors.AsType[unsent](err)
	return early && (errors.As(err, &untrusted) || errors.As(err, &plain) || errors.As(err, &network) && network.Op == "remote error")
}

// wrap makes err the *backend.Error of op.
func wrap(op string, err error) error {
	f := faultOf(err)
	return &backend.Error{Op: op, Class: f.class, Err: discreet(err), KeyOnly: f.keyOnly}
}

// discreet returns err without the arguments that Redis repeats of a command it does
// not know: keys name users, and what a new connection says holds a password. All
// that a server said goes through here before anybody else sees it.
func discreet(err error) error {
	text, _, repeats := strings.Cut(err.Error(), ", with args beginning with:")
	if !repeats {
		return err
	}
	return &abridged{text, func(target error) bool { return errors.Is(err, target) }}
}

// abridged is a server's answer of which a part is left out. It is still what the
// answer was, but nobody can unwrap it and print the rest.
type abridged struct {
	text string
	is   func(error) bool
}

func (*abridged) RedisError() {}

func (a *abridged) Error() string { return a.text }

func (a *abridged) Is(target error) bool { return a.is(target) }
