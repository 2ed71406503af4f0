package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
)

// ErrUnverified is in an error of [Store.Verify] for each thing that Verify could not check,
// for want of a right for example.
var ErrUnverified = errors.New("could not be checked")

// Verify checks what a limiter needs of the servers, for a program that would rather know it
// at its start: that they can be reached and accept the login, that the user has the rights
// to all scripts and commands of a limiter (SECURITY.md), and that no server evicts keys
// when its memory is full, because a key whose window is evicted gets a second limit. In a
// cluster it checks every master, and also the clients of [WithReplicas].
//
// It returns nil, or one error that joins all faults and names no user and no key. A part
// for which errors.Is(part, [ErrUnverified]) holds is no fault, but something that could not
// be checked: the eviction policy, if the user lacks the right to INFO. The other parts are
// [backend.Error]s. Verify makes some ten calls for each server, on a key of a random name
// that is gone after half a minute, unless a right is missing. The client's timeouts bound each call, also if ctx ends.
func (s *Store) Verify(ctx context.Context) error {
	if err := s.begin("verify"); err != nil {
		return err
	}
	defer s.calls.End()
	var faults []error
	said := make(map[string]bool) // several calls may have the same fault
	for _, at := range s.servers(ctx) {
		for _, err := range append(s.exercise(ctx, at.key, at.server), evicts(ctx, at.server)) {
			if err != nil && !said[err.Error()] {
				faults = append(faults, err)
				said[err.Error()] = true
			}
		}
	}
	return errors.Join(faults...)
}

// keyed is a server and a key that it holds.
type keyed struct {
	key    string
	server redis.UniversalClient
}

// servers returns a key for each server that writes. In a cluster it tries so many names
// that each master has one.
func (s *Store) servers(ctx context.Context) (all []keyed) {
	name := "verify:" + rand.Text()
	if s.cluster == nil {
		return []keyed{{name, s.client}}
	}
	seen := make(map[*redis.Client]bool)
	for i := range manyNodes {
		key := name + ":" + strconv.Itoa(i)
		node, err := s.cluster.MasterForKey(ctx, keysOf(s.prefix, key)[0])
		if err != nil { // a call says why
			return []keyed{{key, s.client}}
		}
		if !seen[node] {
			seen[node] = true
			all = append(all, keyed{key, node})
		}
	}
	return all
}

// exercise makes every call on the key. If the server does not answer, it makes no more.
func (s *Store) exercise(ctx context.Context, key string, server redis.UniversalClient) (faults []error) {
	limit := backend.Limit{Tokens: 10, Window: 10 * time.Second}
	var window backend.Window
	take := func() error {
		r, err := s.Take(ctx, backend.TakeRequest{Key: key, Limit: limit, Tokens: 2})
		window = r.Window
		return err
	}
	sync := func(client string) func() error {
		return func() error {
			_, err := s.Sync(ctx, backend.SyncRequest{Key: key, Client: client, Limit: limit, Want: 1, Strand: -1})
			return err
		}
	}
	settle := func() error {
		_, err := s.Settle(ctx, backend.SettleRequest{Key: key, Window: max(window, 1), Tokens: -1, Limit: limit.Tokens})
		return err
	}
	evaluate := func(command string) func() error { // a script's text is otherwise sent only after a restart
		return func() error {
			return s.reading("verify", server.Do(ctx, command, "return 0", 1, keysOf(s.prefix, key)[0]).Err())
		}
	}
	tries := []func() error{
		evaluate("eval"),
		evaluate("eval_ro"),
		func() error { _, err := s.Check(ctx, key, limit); return err },
		take, sync("a"), sync("b"), sync("a"), settle,
		func() error { _, err := s.Reset(ctx, backend.ResetRequest{Key: key, Limit: limit}); return err },
		sync("c"), // it deletes fields that are void
	}
	for _, reader := range s.readers {
		tries = append(tries, func() error {
			_, err := s.newCall(ctx, request{script: checkScript, key: key, args: []any{limit.Tokens, limit.Window.Milliseconds()}}).await(reader)
			return s.reading("check of a replica", err)
		})
	}
	for _, try := range tries {
		err := try()
		if err != nil {
			faults = append(faults, err)
		}
		if failure, ok := errors.AsType[*backend.Error](err); ok && failure.Class == backend.Unavailable {
			break
		}
	}
	return faults
}

// evicts returns an error if the server may evict open windows.
func evicts(ctx context.Context, server redis.UniversalClient) error {
	info := server.InfoMap(ctx, "memory")
	if err := info.Err(); err != nil {
		return fmt.Errorf("the eviction policy %w: %w", ErrUnverified, redact(err))
	}
	policy, limit := info.Item("Memory", "maxmemory_policy"), info.Item("Memory", "maxmemory")
	if policy == "" || limit == "" {
		return fmt.Errorf("the eviction policy %w: the server does not tell it", ErrUnverified)
	}
	if policy == "noeviction" || limit == "0" {
		return nil
	}
	return &backend.Error{Op: "verify", Class: backend.Rejected, Err: fmt.Errorf(
		"maxmemory is %s bytes with maxmemory-policy %s, so the server may evict open windows, which gives their keys a second limit: use noeviction", limit, policy)}
}
