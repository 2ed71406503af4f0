package redisstore

import (
	"context"
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
// the keys of the slot instead, of which a node has thousands. It needs rights that the limiter does not
// need (SCAN or CLUSTER GETKEYSINSLOT, HGETALL). While a slot moves, it returns an
// error for a key that has left, and misses a counter that has. The client's timeouts bound each call.
func (s *Store) Inspect(ctx context.Context, key string) (all []backend.Contents, err error) {
	if err := backend.ValidateKey(key); err != nil {
		return nil, err
	}
	if err := s.begin("inspect"); err != nil {
		return nil, err
	}
	defer s.calls.End()
	client := s.client
	tag := tagOf(s.prefix, key)
	if s.cluster != nil {
		if client, err = s.cluster.MasterForKey(ctx, tag); err != nil {
			return nil, s.reading("inspect", err)
		}
	}
	names, err := s.counters(ctx, client, tag)
	for i := 0; i < len(names) && err == nil; i++ { // not those of a walk that broke off
		var c backend.Contents
		if c, err = s.contents(ctx, client, key, names[i]); c.Window.End != 0 || c.Held > 0 {
			all = append(all, c)
		}
	}
	if redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "TRYAGAIN") {
		err = errMoves
	}
	if err != nil {
		return nil, s.reading("inspect", err)
	}
	return all, nil
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
		// A node says that a slot is elsewhere, or moves, only to a command that has a key.
		elsewhere := client.Exists(ctx, tag).Err()
		moves := redis.HasErrorPrefix(elsewhere, "ASK")
		if elsewhere != nil && !moves {
			return nil, elsewhere
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
		if moves && len(found) == 0 {
			return nil, errMoves
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

// contents reads a counter: its clients, and then what a check says of it.
func (s *Store) contents(ctx context.Context, client redis.UniversalClient, key, counter string) (out backend.Contents, err error) {
	out.Counter = counter
	keys, sc, account, now := keysOf(s.prefix, key, counter), checkScript, account, ""
	if at, test := storeclock.From(ctx); test {
		now = strconv.FormatInt(at.UnixMicro(), 10)
	}
	own, args := keys[2], []any{now}
	length, rolls := strings.CutSuffix(counter, ":roll")
	if rolls {
		window, err := time.ParseDuration(length)
		if err != nil || window < backend.MinRolling || window > backend.MaxWindow {
			return out, badState
		}
		own, sc, account, args = keys[0], rollCheckScript, ringAccount, []any{window.Milliseconds(), 0, now}
	}
	fields, err := client.HGetAll(ctx, own).Result()
	if err != nil {
		return out, err
	}
	v, err := redis.NewScript(sc.source).Run(ctx, client, keys[:sc.keys], args...).Int64Slice()
	if err != nil {
		return out, err
	}
	if !sc.replies(v) {
		return out, badState
	}
	read := checked(v, backend.Limit{Rolls: rolls})
	out.Window, out.Left, out.Held, out.Used = read.Window, read.Left, read.Held, v[4]
	of := string(appendName(nil, read.Window))
	if rolls {
		of = strconv.FormatInt(read.Window.Gen, 10)
	} else if read.Window.End == 0 {
		return out, nil
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if name == "head" || rolls && (name == "idle" || len(name) == 1 && "0" <= name && name <= "4") {
			continue
		}
		m := account.FindStringSubmatch(fields[name])
		if m == nil {
			return out, badState
		}
		if m[2] == of {
			client := backend.Account{Client: name, Mine: number(m[3]), Idle: number(m[4]), Left: m[1] != ""}
			out.Clients, out.Idle = append(out.Clients, client), out.Idle+client.Idle
		}
	}
	return out, nil
}

// The texts of the ledger's fields, see lua/sync.lua, and of the ring's, see lua/roll.lua. They say whether the client has left,
// which window they are of, how many tokens are charged, and how many of these are idle.
var (
	account     = regexp.MustCompile(`^(~?)(\d{1,16}(?:\.\d{1,16})?) \d+ \d+ (\d{1,16})(?:\+(\d{0,16}))?$`)
	ringAccount = regexp.MustCompile(`^(~?)(\d{1,16}) \d+ \d+ \d+[^+]*()(?:\+(\d{0,16}))?$`)
)

// badState is that of a field which no script has written.
var badState = redacted("BADSTATE the ledger has another form")

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
