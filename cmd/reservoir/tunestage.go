package main

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
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
func (c *tuning) stage() (s *stage, err error) {
	s = &stage{where: c.where, prefix: c.prefix + "reservoir-tune:" + rand.Text()[:12] + ":"}
	if len(c.where) == 0 {
		s.where, s.name = []string{memory}, fmt.Sprintf("the embedded store, %v away", c.setting.Delay)
	}
	if s.probe, err = s.empty(); err != nil || s.name != "" {
		return s, err
	}
	if s.probe.private() {
		return s, usagef("bad value for flag -store: memory is no shard beside others here")
	}
	var names []string
	for _, p := range s.probe.parts {
		names = append(names, p.name)
	}
	s.name = "Redis at " + strings.Join(names, " and ")
	return s, nil
}

// empty opens a store whose keys have a prefix of their own.
func (s *stage) empty() (*opened, error) {
	s.opened++
	return open(s.where, s.prefix+strconv.Itoa(s.opened)+":", tuneConns)
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
