package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

// stage is where a traffic is replayed: for each policy a store that holds nothing.
type stage struct {
	name   string
	where  []string
	prefix string
	opened int // stores so far
	probe  *opened
}

// tuneConns is how many calls to a Redis may be under way at a time: of direct
// calls those of one round trip, with room for a slow one.
const tuneConns = 256

// stage judges the addresses. It does no I/O.
func (c *tuning) stage() (*stage, error) {
	s := &stage{where: c.redis, prefix: "reservoir-tune:" + rand.Text()[:12] + ":"}
	if len(c.redis) == 0 {
		s.where, s.name = []string{memory}, fmt.Sprintf("the embedded store, %v away", c.setting.Delay)
	}
	names := make([]string, len(c.redis))
	for i, where := range c.redis {
		o, err := redisstore.Options(where)
		if err != nil {
			return nil, usagef("bad value for flag -redis: %s", oneLine(err))
		}
		names[i] = nameOf(o)
	}
	if len(names) > 0 {
		s.name = "Redis at " + strings.Join(names, " and ")
	}
	var err error
	s.probe, err = s.empty()
	return s, err
}

// empty opens a store whose keys have a prefix of their own.
func (s *stage) empty() (*opened, error) {
	s.opened++
	return open("redis", s.where, s.prefix+strconv.Itoa(s.opened)+":", tuneConns)
}

// ping looks at a key that is not there, so that a Redis that is away, or refuses
// scripts, is known before the replay.
func (s *stage) ping(ctx context.Context, l reservoir.Limit) error {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	_, err := s.probe.Check(ctx, "ping", l)
	return err
}

// Close closes the store that was opened to ping.
func (s *stage) Close() error { return s.probe.Close() }

// scriptCalls is how many calls of scripts the servers have counted, if they tell.
func (o *opened) scriptCalls(ctx context.Context) (sum int64, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	var calls atomic.Int64 // a cluster's masters are asked at once
	add := func(ctx context.Context, c *redis.Client) error {
		text, err := c.Info(ctx, "commandstats").Result()
		calls.Add(scriptCallsIn(text))
		return err
	}
	for _, client := range o.clients {
		var err error
		switch c := client.(type) {
		case *redis.ClusterClient:
			err = c.ForEachMaster(ctx, add)
		case *redis.Client:
			err = add(ctx, c)
		}
		if err != nil {
			return 0, false
		}
	}
	return calls.Load(), len(o.clients) > 0
}

// scriptCallsIn sums up the lines of scripts, as "cmdstat_evalsha:calls=3,usec=…".
func scriptCallsIn(commandstats string) (sum int64) {
	for line := range strings.Lines(commandstats) {
		name, stat, _ := strings.Cut(line, ":calls=")
		switch name {
		case "cmdstat_evalsha", "cmdstat_eval", "cmdstat_evalsha_ro", "cmdstat_eval_ro":
			calls, _, _ := strings.Cut(stat, ",")
			n, _ := strconv.ParseInt(calls, 10, 64)
			sum += n
		}
	}
	return sum
}
