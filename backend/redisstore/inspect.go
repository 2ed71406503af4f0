package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// Inspect implements backend.Inspector. To find the counters of a key it walks over all keys of the database with
// SCAN, a thousand a call: some seconds for ten million keys, in which the server serves others too. In a cluster it asks for
// the keys of the slot instead, of which a node has thousands. Then one transaction reads the counters. It needs rights that the limiter does not
// need (SCAN or CLUSTER GETKEYSINSLOT, MULTI, HGETALL). While a slot moves, it misses what has moved. The client's timeouts bound each call.
func (s *Store) Inspect(ctx context.Context, key string) ([]backend.Contents, error) {
	if err := backend.ValidateKey(key); err != nil {
		return nil, err
	}
	if err := s.begin("inspect"); err != nil {
		return nil, err
	}
	defer s.calls.End()
	tag := tagOf(s.prefix, key)
	client, err := s.reader(ctx, tag)
	if err != nil {
		return nil, s.reading("inspect", err)
	}
	names, err := s.counters(ctx, client, tag)
	if err != nil || len(names) == 0 {
		return nil, s.reading("inspect", err)
	}
	list := make([]stored, len(names))
	var at *redis.TimeCmd
	cmds, err := client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		at = p.Time(ctx)
		for i, name := range names {
			keys := keysOf(s.prefix, key, name)
			list[i].counter = name
			if rolls(name) {
				list[i].own = p.HGetAll(ctx, keys[0])
			} else {
				list[i].used, list[i].end, list[i].own = p.Get(ctx, keys[0]), p.Get(ctx, keys[1]), p.HGetAll(ctx, keys[2])
			}
		}
		return nil
	})
	for _, c := range cmds {
		if redis.HasErrorPrefix(err, "EXECABORT") { // a command was refused, and only its own error says why
			err = c.Err()
		}
	}
	if err != nil && err != redis.Nil {
		return nil, s.reading("inspect", err)
	}
	now := at.Val()
	if test, ok := storeclock.From(ctx); ok {
		now = test
	}
	var all []backend.Contents
	for _, c := range list {
		contents, err := c.read(now)
		if err != nil {
			return nil, err
		}
		if contents.Window.End != 0 || contents.Held > 0 {
			all = append(all, contents)
		}
	}
	return all, nil
}

// reader returns the client of the server that has the key.
func (s *Store) reader(ctx context.Context, tag string) (redis.UniversalClient, error) {
	if s.cluster == nil {
		return s.client, nil
	}
	node, err := s.cluster.MasterForKey(ctx, tag)
	return node, err
}

// counters returns the names of the counters of a key, in order.
func (s *Store) counters(ctx context.Context, client redis.UniversalClient, tag string) ([]string, error) {
	found := make(map[string]bool)
	add := func(name string) {
		if counter, ok := strings.CutPrefix(name, tag+":"); ok {
			found[strings.TrimSuffix(strings.TrimSuffix(counter, kinds[1]), kinds[2])] = true
		}
	}
	if s.cluster != nil {
		// A node says that a slot is elsewhere only to a command that has a key.
		if err := client.Exists(ctx, tag).Err(); err != nil && !redis.HasErrorPrefix(err, "ASK") {
			return nil, err
		}
		slot, err := client.ClusterKeySlot(ctx, tag).Result()
		if err != nil {
			return nil, err
		}
		names, err := client.ClusterGetKeysInSlot(ctx, int(slot), math.MaxInt32).Result()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			add(name)
		}
		return slices.Sorted(maps.Keys(found)), nil
	}
	literal := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)
	scan := client.Scan(ctx, 0, literal.Replace(tag)+":*", 1000).Iterator()
	for scan.Next(ctx) {
		add(scan.Val())
	}
	return slices.Sorted(maps.Keys(found)), scan.Err()
}

func rolls(counter string) bool { return strings.HasSuffix(counter, ":roll") }

// stored is what the keys of a counter hold.
type stored struct {
	counter   string
	used, end *redis.StringCmd // nil if it is rolling
	own       *redis.MapStringStringCmd
}

// read returns the counter as lua/check.lua reads it.
func (c *stored) read(now time.Time) (out backend.Contents, err error) {
	if rolls(c.counter) {
		return c.readRing(now.UnixMicro())
	}
	own := c.own.Val()
	h := head.FindStringSubmatch(cmp.Or(own["head"], "0 0 0"))
	if h == nil {
		return out, badState("ledger")
	}
	count, err := strconv.ParseInt(cmp.Or(c.used.Val(), "0"), 10, 64)
	if err != nil {
		return out, badState("count")
	}
	seconds, err := strconv.ParseFloat(cmp.Or(c.end.Val(), "0"), 64)
	if err != nil || math.IsNaN(seconds) || math.Abs(seconds) > 1e12 {
		return out, badState("end of the window")
	}
	of, end := window(h[1]), int64(math.Floor(seconds*1000+0.5))
	count = max(count, 0)
	if sum := number(h[2]); of.Time().After(now) && (end == 0 || end == of.End) {
		end, count = of.End, max(count, sum)
	}
	out = backend.Contents{Counter: c.counter, Window: backend.Window{End: end, Gen: of.Gen}, Used: count, Held: held(h[3], now.UnixMicro())}
	if out.Left = out.Window.Time().Sub(now).Truncate(time.Microsecond); end == 0 || out.Left <= 0 {
		out.Window.End, out.Left, out.Used = 0, 0, 0
	}
	if of != out.Window {
		return out, nil
	}
	out.Idle = number(h[4])
	out.Clients, err = accounts(own, account, h[1])
	return out, err
}

// readRing reads a rolling limit as lua/rollcheck.lua does.
func (c *stored) readRing(now int64) (out backend.Contents, err error) {
	own := c.own.Val()
	h := ringHead.FindStringSubmatch(cmp.Or(own["head"], "0 0 0 0 0 0 0"))
	length, err := time.ParseDuration(strings.TrimSuffix(c.counter, ":roll"))
	idle := ringIdle.FindStringSubmatch(cmp.Or(own["idle"], "+0 0"))
	if h == nil || idle == nil || err != nil || length < backend.MinRolling || length > backend.MaxWindow {
		return out, badState("ring")
	}
	last := number(h[2])
	now = max(now+number(h[3]), last)
	low := backend.Bucket(last, length) - backend.Buckets
	out = backend.Contents{Counter: c.counter, Window: backend.Window{Gen: number(h[1])}, Idle: number(idle[1]), Held: held(h[4], now)}
	for bucket := max(low, backend.Bucket(now, length)-backend.Buckets); bucket <= low+backend.Buckets+backend.Ahead; bucket++ {
		group := strings.Split(cmp.Or(own[strconv.FormatInt(bucket/8%5, 10)], "0,0,0,0,0,0,0,0"), ",")
		if len(group) != 8 {
			return out, badState("ring")
		}
		if n := number(group[bucket%8]); n > 0 {
			out.Used = min(out.Used+n, backend.MaxTokens)
			out.Window.End = (backend.BucketEnd(bucket+backend.Buckets, length) + 999) / 1000
		}
	}
	out.Left = max(microseconds(out.Window.End*1000-now), 0)
	maps.DeleteFunc(own, func(name, _ string) bool { return name == "idle" || len(name) == 1 && "0" <= name && name <= "4" })
	out.Clients, err = accounts(own, ringAccount, h[1])
	return out, err
}

// The texts of the ledger's fields, see lua/sync.lua, and of the ring's, see lua/roll.lua.
var (
	ringHead    = regexp.MustCompile(`^(\d{1,16})(?: \d{1,16}){3} (\d{1,16})(?: \d+){2}(?: \d+ (\d{1,16})(?:!(\d{1,16}))?)?$`)
	ringIdle    = regexp.MustCompile(`^\+(\d{1,16})[ \d]+$`)
	ringAccount = regexp.MustCompile(`^(~?)(\d{1,16}) \d+ \d+ \d+[^+]*()(?:\+(\d{0,16}))?$`)

	head    = regexp.MustCompile(`^(\d{1,16}(?:\.\d{1,16})?) (\d{1,16}) \d+(?:!(\d{1,16}))?[ \d]*(?:\+(\d{1,16})[ \d]+)?$`)
	account = regexp.MustCompile(`^(~?)(\d{1,16}(?:\.\d{1,16})?) \d+ \d+ (\d{1,16})(?:\+(\d{0,16}))?$`)
)

// window reads a window's name.
func window(text string) backend.Window {
	end, gen, _ := strings.Cut(text, ".")
	return backend.Window{End: number(end), Gen: number(gen)}
}

// appendName writes a window's name.
func appendName(text []byte, w backend.Window) []byte {
	if text = strconv.AppendInt(text, w.End, 10); w.Gen != 0 {
		text = strconv.AppendInt(append(text, '.'), w.Gen, 10)
	}
	return text
}

// number reads digits; none are 0.
func number(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

// held is how long a limit is held at now, us, if it is until then, Unix ms.
func held(until string, now int64) time.Duration { return max(microseconds(number(until)*1000-now), 0) }

// accounts reads the clients' fields that are of the window, or of the ring's generation.
func accounts(own map[string]string, account *regexp.Regexp, of string) (list []backend.Account, err error) {
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if name == "head" {
			continue
		}
		m := account.FindStringSubmatch(own[name])
		switch {
		case m == nil:
			return nil, badState("ledger")
		case m[2] == of:
			list = append(list, backend.Account{Client: name, Mine: number(m[3]), Idle: number(m[4]), Left: m[1] != ""})
		}
	}
	return list, nil
}

func badState(what string) error {
	return &backend.Error{Op: "inspect", Class: backend.Rejected, KeyOnly: true, Err: fmt.Errorf("the stored %s is not a number", what)}
}
