package redisstore

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/lua"
)

// script is one Lua script and how to call it.
type script struct {
	op      string // as errors name it
	source  string
	sha     string
	bySHA   string // EVALSHA, or the form that replicas take
	bySrc   string
	index   int           // among the four
	keys    int           // that it takes
	fields  int           // integers in a full reply
	dated   bool          // takes an instant after which it does nothing
	repeats backend.Class // up to which class of failure it may be sent again
}

// Whether a script may be repeated after a failure is decided here alone. Sync is
// idempotent and check changes nothing; take and refund are not, and go again
// only when they surely did not run.
var (
	syncScript   = newScript(0, "sync", lua.Sync, "", 3, 12, true)
	takeScript   = newScript(1, "take", lua.Take, "", 2, 5, false)
	checkScript  = newScript(2, "check", lua.Check, "_ro", 2, 5, true)
	refundScript = newScript(3, "refund", lua.Refund, "", 2, 3, false)
)

func newScript(index int, op, source, suffix string, keys, fields int, idempotent bool) *script {
	sum := sha1.Sum([]byte(source))
	s := &script{
		op: op, source: source, sha: hex.EncodeToString(sum[:]),
		bySHA: "evalsha" + suffix, bySrc: "eval" + suffix,
		index: index, keys: keys, fields: fields, dated: suffix == "", repeats: backend.Unavailable,
	}
	if idempotent {
		s.repeats = backend.Unknown
	}
	return s
}

// mayRepeat reports whether the script may be sent again after a failure of class c.
func (s *script) mayRepeat(c backend.Class) bool {
	return c == backend.Unavailable || c == backend.Unknown && s.repeats == backend.Unknown
}

// Attempts at one call, the first included, and the pause before the second;
// it doubles and is jittered. All of them share the caller's deadline.
const (
	attempts = 3
	pause    = 2 * time.Millisecond
)

// run makes the call until it has an answer, may not be repeated, or its context ends.
func (s *Store) run(c *call, to *route) ([]int64, error) {
	sc := c.script
	if s.err != nil {
		return nil, &backend.Error{Op: sc.op, Class: backend.Rejected, Err: s.err}
	}
	defer c.bound(to.prompt())()
	ctx := c.ctx
	if err := ctx.Err(); err != nil {
		return nil, &backend.Error{Op: sc.op, Class: backend.Unavailable, Err: err}
	}
	c.finish()
	for i := 0; ; i++ {
		reply, err := c.await(to.group(ctx, c.tag))
		if err == nil {
			to.known.Store(true)
			s.met()
			return reply, nil
		}
		class := classify(err)
		if i+1 >= attempts || ctx.Err() != nil || !sc.mayRepeat(class) || errors.Is(err, ErrNotReplicated) {
			return nil, &backend.Error{Op: sc.op, Class: class, Err: err}
		}
		reload(ctx, to.client)
		if !sleep(ctx, jitter(pause<<i)) {
			return nil, &backend.Error{Op: sc.op, Class: class, Err: err}
		}
		if to.second != nil {
			to = to.second
		}
	}
}
