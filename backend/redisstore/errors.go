package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
)

// Faults of the store's own set-up; New notes them, Err and every call return them.
var (
	errNoClient = errors.New("no redis client")
	errRing     = errors.New("redis.Ring moves keys to other shards when one is away, which gives them a second limit: use one store per shard and the sharding package")
	errPrefix   = errors.New("a prefix has no braces, blanks or control characters")
)

// errLate is the answer of a script that was delivered after its time: it did nothing.
var errLate = errors.New("the server got the command too late")

// fault is one way in which a command fails, and what that means.
type fault struct {
	name  string
	class backend.Class // what the command may have done
	cure  cure

	// By one of these it is known: how the server's text begins, or what the
	// error is.
	says string
	is   func(error) bool

	// midway: Redis may say it in the middle of a script, between two writes.
	// The other refusals come before a script's first write or not at all: once
	// it has written, Redis lets it go on without memory, replicas or a disk.
	midway bool
	final  bool // it is not said again, whatever the class

	// keyOnly: it is about the key or its slot. Other keys of the server are served.
	keyOnly bool
	free    bool // the first repetition is not of the budget
}

// cure is what may help the next command, beside time.
type cure uint8

const (
	noCure      cure = iota // nothing
	reloadSlots             // to look again where a cluster's slots are
	findHeir                // the same, and to see whether another node has taken over
)

// faults is the table of errors: the first row that fits says what a failure
// means. Whether to repeat is decided by the class and the script (mayRepeat).
var faults = []fault{
	// Surely not applied: it was not sent, or not on time. A caller who has left
	// says nothing of the server.
	{name: "left unsent", class: backend.Unavailable, is: isLeftUnsent},
	{name: "unsent", class: backend.Unavailable, cure: findHeir, is: isUnsent},
	{name: "late", class: backend.Unavailable, is: isAny(errLate), free: true},
	{name: "pool timeout", class: backend.Unavailable, cure: findHeir, is: isAny(redis.ErrPoolTimeout, redis.ErrPoolExhausted)},
	{name: "handshake", class: backend.Rejected, is: isHandshake},
	{name: "dial", class: backend.Unavailable, cure: findHeir, is: isDial},
	{name: "no nodes", class: backend.Unavailable, cure: reloadSlots, is: isText("redis: cluster has no nodes")},
	{name: "no sentinels", class: backend.Unavailable, is: isText("redis: all sentinels specified in configuration are unreachable")},
	{name: "closed", class: backend.Rejected, is: isAny(redis.ErrClosed)},

	// Surely not applied: the server will serve soon.
	{name: "LOADING", class: backend.Unavailable, cure: findHeir, says: "LOADING"},
	{name: "MASTERDOWN", class: backend.Unavailable, cure: reloadSlots, says: "MASTERDOWN"},
	{name: "slot not served", class: backend.Unavailable, cure: reloadSlots, says: "CLUSTERDOWN Hash slot not served", keyOnly: true},
	{name: "CLUSTERDOWN", class: backend.Unavailable, cure: reloadSlots, says: "CLUSTERDOWN"},
	{name: "TRYAGAIN", class: backend.Unavailable, says: "TRYAGAIN", keyOnly: true},
	{name: "NOREPLICAS", class: backend.Unavailable, says: "NOREPLICAS"},
	{name: "max clients", class: backend.Unavailable, says: "ERR max number of clients"},
	{name: "BUSY", class: backend.Unavailable, says: "BUSY"},

	// Surely not applied: another server will serve. MOVED, ASK and NOSCRIPT are
	// acted upon before they come here; what does come is more of them.
	{name: "MOVED", class: backend.Unavailable, cure: reloadSlots, says: "MOVED", keyOnly: true},
	{name: "ASK", class: backend.Unavailable, cure: reloadSlots, says: "ASK", keyOnly: true},
	{name: "READONLY", class: backend.Unavailable, cure: reloadSlots, says: "READONLY"},
	{name: "NOSCRIPT", class: backend.Unavailable, says: "NOSCRIPT"},

	// Surely not applied, and an operator's.
	{name: "OOM", class: backend.Rejected, says: "OOM"},
	{name: "MISCONF", class: backend.Rejected, says: "MISCONF"},
	{name: "NOPERM", class: backend.Rejected, says: "NOPERM", midway: true},
	{name: "NOAUTH", class: backend.Rejected, says: "NOAUTH"},
	{name: "NOAUTH", class: backend.Rejected, says: "ERR Protocol error: unauthenticated"}, // to a long command
	{name: "WRONGPASS", class: backend.Rejected, says: "WRONGPASS"},
	{name: "CROSSSLOT", class: backend.Rejected, says: "CROSSSLOT", keyOnly: true},
	{name: "WRONGTYPE", class: backend.Rejected, says: "WRONGTYPE", midway: true, keyOnly: true},
	{name: "BADSTATE", class: backend.Rejected, says: "BADSTATE", keyOnly: true}, // ours: a stored value is not what it should be

	// Carried out, but not to be relied upon.
	{name: "not replicated", class: backend.Unknown, final: true, is: isAny(ErrNotReplicated)},

	// Unknown: it was sent, and there is no answer, or none that makes sense.
	{name: "no reply", class: backend.Unknown, is: isAny(redis.Nil)},
	{name: "cancelled", class: backend.Unknown, is: isAny(context.Canceled)},
	{name: "deadline", class: backend.Unknown, cure: findHeir, is: isAny(context.DeadlineExceeded)},
	{name: "connection", class: backend.Unknown, cure: findHeir, is: isConnection},

	// Whatever else a server says, it has refused by that.
	{name: "other reply", class: backend.Rejected, is: isReply, midway: true},
}

// faultOf returns the first row that fits.
func faultOf(err error) fault {
	said := ""
	if server, ok := errors.AsType[redis.Error](err); ok {
		said = server.Error()
	}
	for _, f := range faults {
		if f.is != nil && f.is(err) || f.says != "" && begins(said, f.says) {
			return f
		}
	}
	return fault{name: "malformed", class: backend.Unknown} // or what we do not know of
}

// begins reports whether the text begins with these whole words.
func begins(text, words string) bool {
	rest, ok := strings.CutPrefix(text, words)
	return ok && (rest == "" || rest[0] == ' ')
}

// classify says what a failed command may have done.
func classify(err error) backend.Class { return faultOf(err).class }

// faultOf is that of a call of the script. What Redis says from behind the
// script's first write, such as that the user has no right to the second, leaves
// the first in place: Unknown, and it would only happen again.
func (s *script) faultOf(err error) fault {
	f := faultOf(err)
	if f.midway && s.mayHaveWritten(err.Error()) {
		f.class, f.final = backend.Unknown, true
	}
	return f
}

// mayHaveWritten reports whether the server's error came from inside the script,
// and from a line that is not surely before its first write is done:
//
//	ERR The user executing the script can't run this command or subcommand script: 5a…, on @user_script:141.
//	WRONGTYPE … script: reservoir_sync_5a…, on @user_function:62.
func (s *script) mayHaveWritten(text string) bool {
	if s.writes == 0 || !strings.Contains(text, "script") {
		return false
	}
	_, at, ok := strings.Cut(text, "@user_script:")
	if !ok {
		_, at, _ = strings.Cut(text, "@user_function:")
	}
	line, err := strconv.Atoi(strings.TrimRight(at, ". \r\n"))
	return err != nil || line > s.writes
}

func isAny(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
}

func isLeftUnsent(err error) bool {
	return errors.Is(err, context.Canceled) && (errors.Is(err, errUnsent) || isDial(err))
}

// isUnsent leaves out what refused the connection by which the call would have been
// sent, or by which a cluster's client asks where: those last, and have their rows.
func isUnsent(err error) bool {
	return errors.Is(err, errUnsent) && !isReply(err) && !isHandshake(err) && !errors.Is(err, redis.ErrClosed)
}

// isText is for errors that go-redis does not export.
func isText(text string) func(error) bool {
	return func(err error) bool { return strings.Contains(err.Error(), text) }
}

func isDial(err error) bool {
	network, ok := errors.AsType[*net.OpError](err)
	return ok && network.Op == "dial"
}

func isConnection(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func isReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
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
