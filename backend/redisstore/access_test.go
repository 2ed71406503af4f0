package redisstore_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// aclBlock is a block of SECURITY.md with access rules. The page is the only place
// where they stand: what operators copy is what is tested.
var aclBlock = regexp.MustCompile("(?s)```acl (\\w+)\n(.*?)\n```")

// rules returns the block of that name.
func rules(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile("../../SECURITY.md")
	require.NoError(t, err)
	for _, block := range aclBlock.FindAllStringSubmatch(string(page), -1) {
		if block[1] == name {
			return block[2]
		}
	}
	require.FailNow(t, "SECURITY.md has no such rules", name)
	return ""
}

// further are the rights that one more feature needs.
func further(t *testing.T, feature string) string {
	t.Helper()
	for line := range strings.Lines(rules(t, "more")) {
		if words := strings.Fields(line); words[0] == feature {
			return " " + strings.Join(words[1:], " ")
		}
	}
	require.FailNow(t, "SECURITY.md has no such feature", feature)
	return ""
}

const aclPassword = "PASSWORD" // as the page has it

// user is a line of the page, and the rules in it.
type user struct {
	name  string
	rules []string
}

func newUser(line string) user {
	words := strings.Fields(line)
	return user{words[1], words[2:]}
}

// without is the user's line, but for one rule, -1 for none.
func (u user) without(i int) string {
	words := []string{"user", u.name}
	for j, rule := range u.rules {
		if i != j {
			words = append(words, rule)
		}
	}
	return strings.Join(words, " ")
}

// forbidden is what servers say: to a client, and from inside a script.
var forbidden = regexp.MustCompile(`NOPERM|WRONGPASS|The user executing the script can't|ACL failure in script`)

// minimal checks that exercise succeeds with all rules and that each, left out,
// makes it fail for want of a right.
func minimal(t *testing.T, line string, set func(line string), exercise func(user) error) {
	t.Helper()
	u := newUser(line)
	set(u.without(-1))
	require.NoError(t, exercise(u), "all rules")
	for i, rule := range u.rules {
		set(u.without(i))
		err := exercise(u)
		require.Error(t, err, "%s is not needed", rule)
		require.Regexp(t, forbidden, err.Error(), rule)
		var failure *backend.Error
		require.ErrorAs(t, err, &failure, rule)
		require.NotEqual(t, backend.Unavailable, failure.Class, "%s: %v: it will not come by itself", rule, err)
	}
	set(u.without(-1))
	require.NoError(t, exercise(u), "all rules again")
}

// all makes every call to a server that knows no script. That the eviction policy cannot be
// read is no fault.
func all(t *testing.T, s *redisstore.Store) error {
	t.Helper()
	unverified, faults := parts(t, s.Verify(t.Context()))
	assert.Equal(t, 1, unverified)
	return faults
}

// faultsOf are those that Verify has found.
func faultsOf(t *testing.T, err error) error {
	_, faults := parts(t, err)
	return faults
}

// plain hides that a store can be inspected, which needs more rights.
type plain struct{ backend.Store }

// limiterOf is a store as the user.
func limiterOf(t *testing.T, server *redistest.Server, u user, opts ...redisstore.Option) *redisstore.Store {
	t.Helper()
	opts = append([]redisstore.Option{redisstore.WithPrefix("rl:")}, opts...)
	return redisstore.New(server.Client(redistest.User(u.name, aclPassword)), opts...)
}

// TestAccess: with the least rights nothing is at fault, and the lack of each right is found,
// also if the server has the scripts.
func TestAccess(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := server.Client()
	line := rules(t, "limiter")
	for _, known := range []bool{false, true} {
		minimal(t, line, server.SetUser, func(u user) error {
			if !known {
				require.NoError(t, admin.ScriptFlush(t.Context()).Err())
			}
			return all(t, limiterOf(t, server, u))
		})
	}
	require.NoError(t, admin.FlushAll(t.Context()).Err())
	require.NoError(t, all(t, limiterOf(t, server, newUser(line))))
	left := admin.Keys(t.Context(), "*").Val()
	require.Len(t, left, 4, "of a fixed limit and a rolling one")
	for _, key := range left {
		require.Positive(t, admin.PTTL(t.Context(), key).Val(), "a key that stays")
	}
	backendtest.Run(t, always(plain{limiterOf(t, server, newUser(line))}))

	other := redisstore.New(server.Client(redistest.User("limiter", aclPassword)), redisstore.WithPrefix("other:"))
	require.Error(t, all(t, other), "nothing but the prefix")
}

func TestAccessOfDashboard(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client()
	writer := redisstore.New(admin, redisstore.WithPrefix("rl:"))
	line := rules(t, "check")
	minimal(t, line, server.SetUser, func(u user) error {
		require.NoError(t, admin.FlushAll(t.Context()).Err())
		take(t, writer, "k", 4)
		roll(t, writer, "k", 3)
		require.NoError(t, admin.ScriptFlush(t.Context()).Err())
		s := limiterOf(t, server, u)
		for range 2 {
			state, err := s.Check(t.Context(), "k", limit10)
			if err != nil {
				return err
			}
			require.EqualValues(t, 6, state.Remaining)
			state, err = s.Check(t.Context(), "k", rolling10)
			if err != nil {
				return err
			}
			require.EqualValues(t, 7, state.Remaining)
		}
		return nil
	})
	s := limiterOf(t, server, newUser(line))
	for op, err := range allCalls(t.Context(), s, "k") {
		if op != "check" {
			require.Equal(t, backend.Rejected, class(t, err), op)
		}
	}
	require.EqualValues(t, 6, remaining(t, writer, "k"), "nothing was written")
}

func TestAccessInCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	line := rules(t, "limiter") + further(t, "cluster")
	open := func(u user) *redisstore.Store {
		client := cluster.Client(clusterUser(u.name))
		return redisstore.New(client, redisstore.WithPrefix("rl:"))
	}
	// The slot of rl:{k} is on its way: who asks for it is sent on.
	from := cluster.NodeOf("rl:{k}")
	to := cluster.Nodes[0]
	if to == from {
		to = cluster.Nodes[1]
	}
	slot := cluster.SlotOf("rl:{k}")
	cluster.OpenSlot(from, to, slot)
	minimal(t, line, cluster.SetUser, func(u user) error {
		for _, node := range cluster.Nodes {
			require.NoError(t, node.Client().ScriptFlush(t.Context()).Err())
			require.NoError(t, node.Client().FlushAll(t.Context()).Err())
		}
		arrive(t, to, "rl:{k}:60s", "3")
		arrive(t, to, "rl:{k}:60s:exp", fmt.Sprint(time.Now().Unix()+60))
		s := open(u)
		if err := faultsOf(t, s.Verify(t.Context())); err != nil {
			return err
		}
		state, err := s.Check(t.Context(), "k", limit10)
		if err == nil {
			require.EqualValues(t, 7, state.Remaining, "read where it has moved to")
		}
		return err
	})
	for _, s := range []*redistest.Server{from, to} {
		require.NoError(t, s.Client().Do(t.Context(), "cluster", "setslot", slot, "stable").Err())
	}
	more := strings.Fields(further(t, "inspect") + further(t, "slots"))
	for i := -1; i < len(more); i++ {
		have := slices.Clone(more)
		if i >= 0 {
			have = slices.Delete(have, i, i+1)
		}
		cluster.SetUser(line + " " + strings.Join(have, " "))
		_, err := open(newUser(line)).Inspect(t.Context(), "k")
		if i < 0 {
			require.NoError(t, err)
		} else if more[i] != "+scan" && more[i] != "+hgetall" {
			require.ErrorContains(t, err, "NOPERM", "%s is not needed", more[i])
		}
	}
	cluster.SetUser(line)
	backendtest.Run(t, always(plain{open(newUser(line))}))
}

// arrive writes a key of a slot that is on its way to the server.
func arrive(t *testing.T, server *redistest.Server, key, value string) {
	t.Helper()
	_, err := server.Client().Pipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Do(t.Context(), "asking")
		return p.Set(t.Context(), key, value, time.Minute).Err()
	})
	require.NoError(t, err)
}

// TestHalfAccess: what a script lacks a right to in its middle never admits more. A reset that
// was refused has opened no window, and what is given back in vain is not given back twice.
func TestHalfAccess(t *testing.T) {
	server := redistest.Start(t)
	s := redisstore.New(server.Client())
	for _, missing := range []string{"mget", "set", "hset", "pexpireat"} {
		server.SetUser("user poor on >" + aclPassword + " ~* +@all -" + missing)
		poor := redisstore.New(server.Client(redistest.User("poor", aclPassword)))
		h := newHolder(s, "a", missing, limit10)
		held, err := h.ask(t.Context(), 10, 0)
		require.NoError(t, err)
		require.EqualValues(t, 10, held.Grant)
		if missing != "mget" {
			_, err = poor.Reset(t.Context(), missing, limit10)
			require.Equal(t, backend.Rejected, class(t, err), missing)
		}
		require.Zero(t, remaining(t, s, missing))
		h.s = poor
		failures := 0
		for range 3 {
			if _, err = h.ask(t.Context(), 0, -4); err != nil {
				failures++
			}
		}
		require.True(t, failures > 0 || missing == "set", missing) // half a reset has left nothing to give back
		h.s = s
		reply, err := h.ask(t.Context(), 0, -4)
		require.NoError(t, err)
		require.LessOrEqual(t, reply.Remaining, int64(4), missing)
		require.LessOrEqual(t, reply.Mine, int64(6), missing)
	}
}

// TestFurtherAccess: what more each feature needs, and that it needs it.
func TestFurtherAccess(t *testing.T) {
	r := redistest.StartReplicated(t, 1)
	server, line := r.Primary, rules(t, "limiter")
	t.Run("inspect", func(t *testing.T) {
		more := further(t, "inspect")
		words := strings.Fields(more)
		for i := -1; i < len(words); i++ {
			have := append([]string{}, words...)
			if i >= 0 {
				have = append(have[:i], have[i+1:]...)
			}
			server.SetUser(line + " " + strings.Join(have, " "))
			take(t, redisstore.New(server.Client(), redisstore.WithPrefix("rl:")), "k", 1)
			_, err := limiterOf(t, server, newUser(line)).Inspect(t.Context(), "k")
			if i < 0 {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, "NOPERM", "%s is not needed", words[i])
			require.Equal(t, backend.Rejected, class(t, err), "%s: %v", words[i], err)
		}
	})
	t.Run("wait", func(t *testing.T) {
		ack := redisstore.WithReplicaAck(1, 10*time.Second)
		server.SetUser(line)
		require.ErrorIs(t, all(t, limiterOf(t, server, newUser(line), ack)), redisstore.ErrNotReplicated)
		server.SetUser(line + further(t, "wait"))
		require.NoError(t, all(t, limiterOf(t, server, newUser(line), ack)))
	})
	t.Run("verify", func(t *testing.T) {
		server.SetUser(line)
		require.ErrorIs(t, limiterOf(t, server, newUser(line)).Verify(t.Context()), redisstore.ErrUnverified)
		server.SetUser(line + further(t, "verify"))
		require.NoError(t, limiterOf(t, server, newUser(line)).Verify(t.Context()))
	})
}

// clusterUser makes a cluster's client log in.
func clusterUser(name string) func(*redis.ClusterOptions) {
	return func(o *redis.ClusterOptions) { o.Username, o.Password = name, aclPassword }
}

// TestAccessToClusterReplicas: a second client, for Check, says READONLY and wants
// to know which commands only read.
func TestAccessToClusterReplicas(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	line := rules(t, "limiter") + further(t, "cluster")
	with := func(rights string) error {
		cluster.SetUser(line + rights)
		name := clusterUser("limiter")
		replicas := cluster.Client(name, func(o *redis.ClusterOptions) { o.ReadOnly = true })
		s := redisstore.New(cluster.Client(name), redisstore.WithPrefix("rl:"), redisstore.WithReplicas(replicas))
		for _, node := range cluster.Nodes {
			require.NoError(t, node.Client().ScriptFlush(t.Context()).Err())
		}
		cluster.ResetStats()
		for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
			if _, err := s.Check(t.Context(), key, limit10); err != nil {
				return err
			}
		}
		return nil
	}
	onReplicas := func() (n int64) {
		for _, node := range cluster.Nodes[3:] {
			n += min(node.Calls("evalsha_ro"), node.Calls("eval_ro"))
		}
		return n
	}
	announceReplicas(t, cluster)
	require.NoError(t, with(further(t, "replicas")))
	require.Positive(t, onReplicas())
	for _, left := range strings.Fields(further(t, "replicas")) {
		rest := strings.ReplaceAll(further(t, "replicas"), left, "")
		err := with(rest)
		require.True(t, err != nil || onReplicas() == 0, "%s is not needed", left)
	}
}
