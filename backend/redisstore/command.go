package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/storeclock"
	"github.com/go-reservoir/reservoir/lua"
)

// script is one Lua script and how to call it.
type script struct {
	op, source string
	sha        any                // the hash of source, a string
	reads      bool               // it writes nothing, so replicas may run it
	keys       int                // number of its keys
	fields     int                // number of integers in its reply
	handsOut   func([]int64) bool // whether replicas must have what it did, by its reply; nil = never
}

var (
	syncScript  = newScript("sync", lua.Sync, 3, 12, granted)
	checkScript = newScript("check", lua.Check, 3, 6, nil)
	resetScript = newScript("reset", lua.Reset, 3, 5, voids)

	// Those of rolling limits, whose one key holds all.
	rollScript      = newScript("sync", lua.Roll, 1, rollFields, granted)
	rollCheckScript = newScript("check", lua.RollCheck, 1, 8, nil)
	rollResetScript = newScript("reset", lua.RollReset, 1, 5, voids)
)

// rollFields is the number of integers in the longest reply, but for the pairs at its end.
const rollFields = 12

func granted(v []int64) bool { return len(v) > 6 && v[6] > 0 }

func voids([]int64) bool { return true }

func newScript(op, source string, keys, fields int, handsOut func([]int64) bool) *script {
	sum := sha1.Sum([]byte(source))
	return &script{op, source, hex.EncodeToString(sum[:]), op == "check", keys, fields, handsOut}
}

// replies reports whether a reply of the script may be so long. Sync leaves out zeros after the count, and if it did
// nothing, all but the time. That of a rolling limit ends with pairs, which say what it grants.
func (sc *script) replies(v []int64) bool {
	n := len(v)
	return n == sc.fields || sc.op == "sync" && (n >= 5 && n < sc.fields || n == 2 && v[0]&(flagLate|flagAstray|flagVoid) != 0) ||
		sc == rollScript && n > sc.fields && (n-sc.fields)%2 == 0
}

// command is a command that go-redis sends only once, alone or in a pipeline. By
// default go-redis repeats EVALSHA three times if its reply is lost.
type command struct{ *redis.IntSliceCmd }

// NoRetry makes Client, ClusterClient and pipelines of go-redis send the command once.
func (command) NoRetry() bool { return true }

// word is an argument of a command, as it is sent. In a list of arguments a pointer to it needs no memory
// of its own, as a string or a number would.
type word []byte

// MarshalBinary implements encoding.BinaryMarshaler, for go-redis.
func (w *word) MarshalBinary() ([]byte, error) { return *w, nil }

// String is for hooks that print commands.
func (w *word) String() string { return string(*w) }

// newCall returns a call with its keys. The caller adds arguments by text and numbers.
func (s *Store) newCall(ctx context.Context, sc *script, key string, l backend.Limit) *call {
	c := &call{script: sc, ctx: ctx, calls: &s.calls}
	c.text, c.all = c.room[:0], c.list[:3]
	escaped, counter := escape(key), l.Counter()
	for _, kind := range kinds[:sc.keys] {
		c.end(appendKey(c.text, s.prefix, escaped, counter, kind))
	}
	if now, test := storeclock.From(ctx); test {
		c.clock = strconv.AppendInt(nil, now.UnixMicro(), 10)
	}
	return c
}

// tag is the first key, by which a cluster finds its node.
func (c *call) tag() string { return c.all[3].(*word).String() }

// add adds an argument.
func (c *call) add(text string) { c.end(append(c.text, text...)) }

// numbers adds arguments.
func (c *call) numbers(all ...int64) {
	for _, n := range all {
		c.end(strconv.AppendInt(c.text, n, 10))
	}
}

// end makes an argument of what has been appended to the text.
func (c *call) end(text []byte) {
	w := &c.words[len(c.all)-3]
	*w, c.text = text[len(c.text):len(text):len(text)], text
	c.all = append(c.all, w)
}

// declare makes the command with so many keys.
func (c *call) declare(keys int) {
	c.line = c.all
	if n := c.script.keys; keys < n {
		c.line = slices.Concat(c.all[:3+keys], c.all[3+n:])
	}
	c.line[2] = keys
	if c.line = append(c.line, (*instant)(c)); !c.script.reads && c.clock != nil {
		c.line = append(c.line, &c.clock)
	}
}

// instant is the script argument "not after"; of a script that reads, it is "now".
type instant call

// MarshalBinary implements encoding.BinaryMarshaler. go-redis calls it when it writes the command.
func (i *instant) MarshalBinary() ([]byte, error) {
	if !i.state.CompareAndSwap(waiting, written) && i.state.Load() == abandoned && !i.script.reads {
		return []byte("1"), nil // long ago
	}
	return i.after, nil
}

// String is for hooks that print commands.
func (i *instant) String() string { return string(i.after) }

// stamp makes the next command, with the script's text or only its hash.
func (c *call) stamp(text bool, ahead time.Duration) {
	if c.cmd.IntSliceCmd != nil {
		c.line = slices.Clone(c.line) // because a hook may keep the last one
	}
	switch {
	case c.script.reads:
		c.after = c.clock
	case c.clock != nil:
		c.after = append(c.time[:0], '0')
	default:
		c.after = strconv.AppendInt(c.time[:0], notAfter(c.ctx, ahead), 10)
	}
	c.line[0], c.line[1] = "evalsha", c.script.sha
	if text {
		c.line[0], c.line[1] = "eval", c.script.source
	}
	if c.onReplica {
		c.line[0] = c.line[0].(string) + "_ro"
	}
	c.cmd = command{redis.NewIntSliceCmd(c.ctx, c.line...)}
}
