package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
)

// ErrUnverified is in an error of [Store.Verify] for each thing that Verify could not check,
// for want of a right for example.
var ErrUnverified = errors.New("could not be checked")

// otherSlots is how many keys more Verify looks at on one server. A node of a cluster of three
// serves them all, and the first, once in 700 times.
const otherSlots = 5

// Verify checks what a limiter needs of the servers, for a program that would rather know it
// at its start: that the client's pool has a connection to spare, that they can be reached and accept the login, that a single server is no node of a cluster, that the user has the rights
// to all scripts and commands of a limiter (SECURITY.md), that messages to limiters come, and
// that no server evicts keys when its memory is full, because a key whose window is evicted gets
// a second limit. In a cluster it checks every master, and also the clients of [WithReplicas].
//
// It returns nil, or one error that joins all faults and names no user and no key. A part
// for which errors.Is(part, [ErrUnverified]) holds is no fault, but something that could not
// be checked: the eviction policy, if the user lacks the right to INFO. The other parts are
// [*backend.Error] values. The one whose Op is "listen" says that messages do not come: limits hold without
// them, but refusals may be early, and a Reset or Refresh elsewhere is seen late. Verify makes some
// twenty calls for each server, one on a connection of its own, on a key of a random name
// that is gone after half a minute, unless a right is missing. The client's timeouts bound each call, also if ctx ends.
func (s *Store) Verify(ctx context.Context) error {
	if err := s.begin("verify"); err != nil {
		return err
	}
	defer s.calls.End()
	var faults []error
	for server, key := range s.servers(ctx) {
		if err := exhausted(server); err != nil { // each call would wait
			faults = append(faults, s.failure("verify", unsent{err}))
			continue
		}
		for _, err := range append(s.exercise(ctx, server, key), evicts(ctx, server)) {
			same := func(other error) bool { return other.Error() == err.Error() } // as of another call or server
			if err != nil && !slices.ContainsFunc(faults, same) {
				faults = append(faults, err)
			}
		}
	}
	return errors.Join(faults...)
}

// servers returns a key for each server that writes. In a cluster it tries so many names
// that each master has one.
func (s *Store) servers(ctx context.Context) map[redis.UniversalClient]string {
	name := "verify:" + rand.Text()
	if s.cluster == nil {
		return map[redis.UniversalClient]string{s.client: name}
	}
	all := make(map[redis.UniversalClient]string)
	for i := range manyNodes {
		key := name + ":" + strconv.Itoa(i)
		node, err := s.cluster.MasterForKey(ctx, tagOf(s.prefix, key))
		if err != nil { // a call says why
			return map[redis.UniversalClient]string{s.client: key}
		}
		all[node] = key
	}
	return all
}

// exercise makes every call on the key. If the server does not answer, it makes no more.
func (s *Store) exercise(ctx context.Context, server redis.UniversalClient, key string) (faults []error) {
	fixed := backend.Limit{Tokens: 10, Window: 10 * time.Second}
	rolls := fixed.Rolling()
	seq := int64(0)
	state := func(l backend.Limit, client string, q backend.Statement) func() error {
		return func() error {
			if q.Key, q.Limit = key, l; client != "" {
				seq++
				q.Client, q.Life, q.Seq = client, 1, seq
			}
			_, err := s.Sync(ctx, q)
			return err
		}
	}
	check := func(key string, l backend.Limit) func() error {
		return func() error { _, err := s.Check(ctx, key, l); return err }
	}
	tries := []func() error{
		func() error { // also because a script's text is otherwise sent only after a restart
			err := server.Eval(ctx, rarely, []string{tagOf(s.prefix, key) + ":"}).Err()
			if err != nil {
				err = blame(ctx, server, err)
			}
			return s.reading("verify", err)
		},
		state(fixed, "a.1", backend.Statement{Want: 9, Need: 1}), state(fixed, "b.1", backend.Statement{Want: 10, Need: 10}), // it calls idle tokens back
		state(fixed, "", backend.Statement{Need: 1}),
		state(fixed, "a.1", backend.Statement{}), // it gives back
		check(key, fixed),
		func() error { _, err := s.Reset(ctx, key, fixed); return err },
		state(rolls, "a.1", backend.Statement{Want: 1, Need: 1}),
		check(key, rolls),
		func() error { return s.hears(ctx, server, key) },
	}
	if s.cluster == nil { // a node of a cluster serves the keys of its own slots, and no others
		for i := range otherSlots {
			tries = append(tries, check(key+":"+strconv.Itoa(i), fixed))
		}
	}
	for _, reader := range s.readers {
		tries = append(tries, func() error {
			c := s.newCheck(ctx, key, fixed)
			c.onReplica = true
			_, err := c.await(reader, checkScript.keys)
			return s.reading("check of a replica", err)
		})
	}
	for _, try := range tries {
		err := try()
		if faults = append(faults, err); err == nil {
			continue
		}
		if failure, ok := errors.AsType[*backend.Error](err); ok && failure.Class == backend.Unavailable {
			break
		}
	}
	return faults
}

// rarely makes the commands that scripts make only now and then, of a ledger with many clients for example.
const rarely = `local k = KEYS[1]; redis.call('HLEN', k); redis.call('EXISTS', k); redis.call('HRANDFIELD', k, 1, 'WITHVALUES')
redis.call('HDEL', k, 'a'); return redis.call('UNLINK', k)`

// hears returns an error if a message that a script sends does not come back on a connection to
// the server, which serves the key.
func (s *Store) hears(ctx context.Context, server redis.UniversalClient, key string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*beat)
	defer cancel()
	process := "verify:" + rand.Text()
	pubsub := server.Subscribe(ctx, s.channel(process))
	defer pubsub.Close()
	_, err := pubsub.Receive(ctx)
	if err == nil {
		err = s.hello(ctx, server, key, process)
	}
	if err == nil {
		_, err = pubsub.Receive(ctx)
	}
	if err == nil {
		err = pubsub.Unsubscribe(ctx, s.channel(process))
	}
	if err == nil {
		_, err = pubsub.Receive(ctx)
	}
	return s.reading("listen", err)
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
