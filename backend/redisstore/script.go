package redisstore

import (
	"crypto/sha1"
	"encoding/hex"
	"regexp"
	"strings"
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
	writes  int           // line of its first write; 0 = it writes nothing
	repeats backend.Class // up to which class of failure it may be sent again
}

const syncIndex = 0

// Whether a script may be repeated after a failure is decided here alone. Sync and
// refund are idempotent and check changes nothing; take is not, and goes again only
// when it surely did not run.
var (
	syncScript   = newScript(syncIndex, "sync", lua.Sync, "", 3, 14, true)
	takeScript   = newScript(1, "take", lua.Take, "", 2, 5, false)
	checkScript  = newScript(2, "check", lua.Check, "_ro", 2, 5, true)
	refundScript = newScript(3, "refund", lua.Refund, "", 3, 3, true)
)

func newScript(index int, op, source, suffix string, keys, fields int, idempotent bool) *script {
	sum := sha1.Sum([]byte(source))
	s := &script{
		op: op, source: source, sha: hex.EncodeToString(sum[:]),
		bySHA: "evalsha" + suffix, bySrc: "eval" + suffix,
		index: index, keys: keys, fields: fields, dated: suffix == "", writes: firstWrite(source), repeats: backend.Unavailable,
	}
	if idempotent {
		s.repeats = backend.Unknown
	}
	return s
}

// firstContact is the number of integers in sync's reply to a client that opened a
// window and knew of none: the last is its grant.
const firstContact = 6

// replies reports whether a reply of the script may have n integers.
func (s *script) replies(n int) bool {
	return n == s.fields || n == firstContact && s.index == syncIndex
}

// mayRepeat reports whether the script may be sent again after a failure of class c.
func (s *script) mayRepeat(c backend.Class) bool {
	return c == backend.Unavailable || c == backend.Unknown && s.repeats == backend.Unknown
}

// reads are the commands of our scripts that change nothing, with DEL, which deletes
// only a ledger that is void.
var reads = regexp.MustCompile(`redis\.call\('(GET|TIME|HMGET|PEXPIRETIME|DEL)'`)

// firstWrite returns the number of the line with the script's first write, from 1.
func firstWrite(source string) int {
	for i, line := range strings.Split(source, "\n") {
		if strings.Contains(reads.ReplaceAllString(line, ""), "redis.call(") {
			return i + 1
		}
	}
	return 0
}

// Attempts at one call, the first included, and the pause before the second;
// it doubles and is jittered. All of them share the caller's deadline and the
// budget of their server. A lost reply is a matter of a connection, so if the
// third is lost too there is more to it; a server that turns calls away may serve
// in a moment, as when a slot moves.
const (
	attemptsUnknown     = 3
	attemptsUnavailable = 9
	pause               = 2 * time.Millisecond
)

// run makes the call until it has an answer, may not be repeated, or its context
// ends. It is the one place that repeats anything.
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
	for ; ; c.attempt++ {
		g := to.group(ctx, c.tag)
		reply, err := c.await(g)
		if err == nil {
			to.known.Store(true)
			g.heard()
			s.met()
			return reply, nil
		}
		f := sc.faultOf(err)
		to.cure(f.cure, g, c.tag)
		if c.attempt > 0 && f.class == backend.Unknown {
			g.vain.Add(1)
		}
		if !c.again(f, to, g) || !sleep(ctx, jitter(pause<<c.attempt)) {
			return nil, &backend.Error{Op: sc.op, Class: f.class, Err: err, KeyOnly: f.keyOnly}
		}
		if to.second != nil {
			to = to.second
		}
	}
}

// again reports whether the call, which failed at g, is made once more, and if so
// charges g's budget for it. Two repetitions are free, for they do not go where
// the call failed: to the primary after a replica, and of a call that came too late
// by a wrong idea of the server's clock, which its reply has put right.
func (c *call) again(f fault, to *route, g *group) bool {
	most := attemptsUnavailable
	if f.class == backend.Unknown {
		most = attemptsUnknown
	}
	switch {
	case c.attempt+1 >= most || c.ctx.Err() != nil:
		return false
	case to.second != nil: // a Check, on a replica: whatever that has against it
		return true
	case f.final || !c.script.mayRepeat(f.class):
		return false
	}
	return f.free && c.attempt == 0 || g.vain.Load() < inVain && g.afford(time.Now())
}
