package redisstore

import (
	"context"
	"errors"
	"net"
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

// classes is the table of what the server may answer instead of a reply, by the
// first word, and what that means for the call. The order does not matter. All
// of them are said before a script runs or, from inside one, before it writes.
var classes = map[string]backend.Class{
	"LOADING":     backend.Unavailable,
	"MASTERDOWN":  backend.Unavailable,
	"CLUSTERDOWN": backend.Unavailable,
	"TRYAGAIN":    backend.Unavailable,
	"NOREPLICAS":  backend.Unavailable,
	"BUSY":        backend.Unavailable,
	"READONLY":    backend.Unavailable, // a former primary: the topology is reloaded
	"MOVED":       backend.Unavailable, // more redirections than the client follows
	"ASK":         backend.Unavailable,
	"NOSCRIPT":    backend.Unavailable,
	"OOM":         backend.Rejected,
	"NOPERM":      backend.Rejected,
	"NOAUTH":      backend.Rejected,
	"WRONGPASS":   backend.Rejected,
	"CROSSSLOT":   backend.Rejected,
	"WRONGTYPE":   backend.Rejected,
	"BADSTATE":    backend.Rejected, // ours: a stored value is not what it should be
}

// classify says what a failed command may have done.
func classify(err error) backend.Class {
	var server redis.Error
	var network *net.OpError
	switch {
	case errors.Is(err, redis.Nil): // no reply of a script
		return backend.Unknown
	case errors.Is(err, errLate), errors.Is(err, errUnsent), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return backend.Unavailable
	case errors.Is(err, redis.ErrClosed):
		return backend.Rejected
	case isHandshake(err):
		return backend.Rejected
	case errors.As(err, &network) && network.Op == "dial":
		return backend.Unavailable
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return backend.Unknown
	case errors.As(err, &server):
		return classifyReply(server.Error())
	}
	return backend.Unknown
}

func classifyReply(text string) backend.Class {
	if strings.HasPrefix(text, "ERR max number of clients") {
		return backend.Unavailable
	}
	word, _, _ := strings.Cut(text, " ")
	if class, ok := classes[word]; ok {
		return class
	}
	return backend.Rejected
}

// wrap makes err the *backend.Error of op.
func wrap(op string, err error) error {
	return &backend.Error{Op: op, Class: classify(err), Err: err}
}
