package redisstore

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/rolling"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// Inspect implements backend.Inspector with one transaction of five reads. It is for
// operators, and needs rights that the limiter does not need (MULTI, HGETALL). The client's
// timeouts bound it, also if ctx is cancelled.
func (s *Store) Inspect(ctx context.Context, key string) (backend.Contents, error) {
	var none backend.Contents
	if err := backend.ValidateKey(key); err != nil {
		return none, err
	}
	if err := s.begin("inspect"); err != nil {
		return none, err
	}
	defer s.calls.End()
	keys := keysOf(s.prefix, key)
	client := s.group(ctx, keys[0]).client
	var used, exp *redis.StringCmd
	var own, ring *redis.MapStringStringCmd
	var at *redis.TimeCmd
	cmds, err := client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		used, exp = p.Get(ctx, keys[0]), p.Get(ctx, keys[1])
		own, at = p.HGetAll(ctx, keys[2]), p.Time(ctx)
		ring = p.HGetAll(ctx, ringOf(s.prefix, key)[0])
		return nil
	})
	for _, c := range cmds {
		if redis.HasErrorPrefix(err, "EXECABORT") { // a command was refused, and only its own error says why
			err = c.Err()
		}
	}
	if err != nil && err != redis.Nil {
		return none, s.reading("inspect", err)
	}
	now := at.Val()
	if test, ok := storeclock.From(ctx); ok {
		now = test
	}
	switch r, ok := rolling.Read(ring.Val()); {
	case !ok:
		return none, badState("ring")
	case r.Open(now.UnixMicro()):
		return r.Contents(now.UnixMicro()), nil
	case used.Err() == redis.Nil || exp.Err() == redis.Nil:
		return none, nil
	}
	count, err := used.Int64()
	if err != nil {
		return none, badState("count")
	}
	seconds, err := exp.Float64()
	if err != nil || math.IsNaN(seconds) || math.Abs(seconds) > 1e12 {
		return none, badState("end of the window")
	}
	out := backend.Contents{Window: backend.Window(math.Floor(seconds*1000 + 0.5)), Used: max(count, 0)} // as the scripts read it
	if out.Left = out.Window.Time().Sub(now); out.Left < 0 {
		return none, nil
	}
	_, idle, _ := strings.Cut(own.Val()["w"], "+") // see sync.lua
	idle, _, _ = strings.Cut(idle, " ")
	out.Clients, err = ledger(own.Val(), out.Window)
	if out.Clients != nil {
		out.Idle, _ = strconv.ParseInt(idle, 10, 64)
	}
	out.Left = out.Left.Truncate(time.Microsecond)
	return out, err
}

// field is the text of a client's field in {k}:own; see sync.lua.
var field = regexp.MustCompile(`^~?(\d{1,18})(?: (\d{1,18}))?(?: \d+)?(?:\+(\d{0,18}))?(?:@(\d+))?$`)

// ledger reads the clients' fields of {k}:own, except void ones, which are of another window.
func ledger(own map[string]string, w backend.Window) (list []backend.Account, err error) {
	if of, _, _ := strings.Cut(own["w"], " "); of != strconv.FormatInt(int64(w), 10) {
		return nil, nil
	}
	era := own["era"]
	delete(own, "w")
	delete(own, "era")
	for name, text := range own {
		m := field.FindStringSubmatch(text)
		switch {
		case m == nil:
			return nil, badState("ledger")
		case m[4] != era:
			continue
		}
		granted, _ := strconv.ParseInt(m[1], 10, 64)
		returned, _ := strconv.ParseInt(m[2], 10, 64) // if absent, 0
		idle, _ := strconv.ParseInt(m[3], 10, 64)
		list = append(list, backend.Account{Client: name, Granted: granted, Returned: returned, Idle: idle})
	}
	slices.SortFunc(list, func(a, b backend.Account) int { return strings.Compare(a.Client, b.Client) })
	return list, nil
}

func badState(what string) error {
	return &backend.Error{Op: "inspect", Class: backend.Rejected, KeyOnly: true, Err: fmt.Errorf("the stored %s is not a number", what)}
}
