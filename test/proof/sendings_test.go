package proof

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// sendings counts how often each statement has left a client: once, and again for
// each repetition by the store. It is a hook of go-redis. With a guess instead, two
// repetitions of whatever was under way at a fault, one search in a hundred took
// more than a minute.
type sendings struct {
	mu    sync.Mutex
	times map[string]int
}

// statementOf names a statement.
func statementOf(key, client, now any) string {
	return fmt.Sprint(key, " ", client, " ", now)
}

// of is how often q has been sent, if it is a statement, and 0 for nil.
func (s *sendings) of(q request) int {
	if s == nil || q.op != "sync" {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times[statementOf("{"+q.key+"}", q.sync.Client, q.now)]
}

// note counts commands that have a script's form: its hash or text, the number of
// its keys, the keys, and the arguments, of which the client is the first and the
// clock of the test the last.
func (s *sendings) note(list []redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range list {
		if args := c.Args(); len(args) > 6 && fmt.Sprint(args[2]) == "3" {
			s.times[statementOf(args[3], args[6], args[len(args)-1])]++
		}
	}
}

func (s *sendings) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sendings) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.note([]redis.Cmder{cmd})
		return next(ctx, cmd)
	}
}

func (s *sendings) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, list []redis.Cmder) error {
		s.note(list)
		return next(ctx, list)
	}
}
