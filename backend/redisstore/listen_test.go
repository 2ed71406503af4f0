package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// listening is a process that listens.
type listening struct {
	backend.Subscription
	t    *testing.T
	mail chan backend.Message
	got  int // messages of it that were read
}

func hearOf(t *testing.T, s *redisstore.Store, process string) *listening {
	mail := make(chan backend.Message, 1000)
	l := &listening{s.Listen(process, func(m backend.Message) { mail <- m }), t, mail, 0}
	t.Cleanup(l.Close)
	return l
}

// await waits until the process hears, or until it does not, and returns the error. Each
// change comes with a message.
func (l *listening) await(hears bool) error {
	l.t.Helper()
	for (l.Err("k") == nil) != hears {
		require.Equal(l.t, backend.Hearing, l.next().Kind)
	}
	return l.Err("k")
}

func (l *listening) next() backend.Message {
	l.t.Helper()
	select {
	case m := <-l.mail:
		l.got++
		return m
	case <-time.After(30 * time.Second):
		require.FailNow(l.t, "no message")
	}
	return backend.Message{}
}

// heard returns the next message about a key.
func (l *listening) heard() (m backend.Message) {
	l.t.Helper()
	for m.Kind == backend.Hearing {
		m = l.next()
	}
	return m
}

// recall makes one client call another's idle tokens back.
func recall(t *testing.T, s *redisstore.Store, key, process string) backend.Reply {
	t.Helper()
	idle := newHolder(s, process+".1", key, limit10)
	idle.next.Want, idle.next.Seq = 10, 1
	_, err := s.Sync(t.Context(), idle.next)
	require.NoError(t, err)
	reply, err := newHolder(s, "x", key, limit10).ask(t.Context(), 1, 0)
	require.NoError(t, err)
	return reply
}

// TestListenersShareAConnection: several limiters of a process, whose keys have any bytes, are
// told apart, and the last one to leave ends the connection.
func TestListenersShareAConnection(t *testing.T) {
	server := redistest.Start(t)
	admin := server.Client()
	s := redisstore.New(server.Client(), redisstore.WithPrefix("rl:"))
	channels := func() map[string]int64 {
		return admin.PubSubNumSub(t.Context(), "rl:reservoir:", "rl:reservoir:a", "rl:reservoir:b").Val()
	}
	require.Zero(t, server.Calls("subscribe"))
	a, b := hearOf(t, s, "a"), hearOf(t, s, "b")
	require.NoError(t, a.await(true))
	require.NoError(t, b.await(true))
	require.Equal(t, map[string]int64{"rl:reservoir:": 1, "rl:reservoir:a": 1, "rl:reservoir:b": 1}, channels())
	for i, key := range []string{"k", "a b:%41}\n\xff{", "n\x1fü"} {
		require.EqualValues(t, 1, recall(t, s, key, []string{"a", "b", "a"}[i]).Called)
		m := []*listening{a, b, a}[i].heard()
		require.Equal(t, backend.Recall, m.Kind)
		require.Equal(t, key, m.Key)
		require.Equal(t, "60s", m.Counter)
		require.EqualValues(t, 10, m.Limit)
		require.Positive(t, m.Window.End)
	}
	changed := backend.Message{Kind: backend.Changed, Key: "k"}
	require.NoError(t, s.Publish(t.Context(), changed))
	require.Equal(t, changed, a.heard())
	require.Equal(t, changed, b.heard())
	void, err := s.Reset(t.Context(), "k", limit10)
	require.NoError(t, err)
	for range 2 { // also where no window is open
		voided := backend.Message{Kind: backend.Voided, Key: "k", Counter: "60s", Window: void}
		require.Equal(t, voided, a.heard())
		require.Equal(t, voided, b.heard())
		w := roll(t, s, "n\x1fü", 1).Window
		rolled, err := s.Reset(t.Context(), "n\x1fü", rolling10)
		require.NoError(t, err)
		require.Equal(t, w, rolled)
		require.Equal(t, backend.Message{Kind: backend.Voided, Key: "n\x1fü", Counter: "60s:roll", Window: w}, a.heard())
		b.heard()
		void, err = s.Reset(t.Context(), "k", limit10)
		require.NoError(t, err)
		require.Zero(t, void.End)
	}
	a.heard()
	b.heard()
	a.Close()
	require.Eventually(t, func() bool { return channels()["rl:reservoir:a"] == 0 }, 10*time.Second, time.Millisecond)
	for range 20 {
		again := hearOf(t, s, "a")
		require.NoError(t, again.await(true))
		again.Close()
	}
	again := hearOf(t, s, "a")
	require.NoError(t, again.await(true))
	again.Close()
	require.EqualValues(t, 1, channels()["rl:reservoir:b"])
	b.Close()
	require.Eventually(t, func() bool { return channels()["rl:reservoir:b"] == 0 }, 10*time.Second, time.Millisecond)
	require.NoError(t, hearOf(t, s, "b").await(true), "and another one may begin")
	require.NoError(t, s.Close())
	require.Error(t, hearOf(t, s, "c").Err("k"))
	require.Error(t, s.Publish(t.Context(), changed))
}

// TestListenerIsCut: a process knows that its connection is cut or that the server is silent, and
// hears again when that is over.
func TestListenerIsCut(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := redisstore.New(server.Client(func(o *redis.Options) {
		o.Addr, o.MaxRetries, o.DialTimeout, o.ReadTimeout = proxy.Addr(), -1, time.Second, time.Second
	}))
	other := redisstore.New(server.Client()) // none of its connections is cut
	l := hearOf(t, s, "a")
	require.NoError(t, l.await(true))
	for name, fault := range map[string]func(on bool){
		"cut":    func(on bool) { proxy.Refuse(on); proxy.Cut() },
		"silent": proxy.Hold,
	} {
		fault(true)
		require.Error(t, l.await(false), name)
		fault(false)
		proxy.Heal()
		require.NoError(t, l.await(true), name)
		require.EqualValues(t, 1, recall(t, other, name, "a").Called)
		require.Equal(t, backend.Recall, l.heard().Kind)
	}
}

// TestListenerWithoutRights: a process that may not listen or publish knows it, and hears as soon
// as it may. Whoever may not publish calls nobody.
func TestListenerWithoutRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	line := "user limiter on >" + aclPassword + " resetchannels ~* +@all"
	server.SetUser(line + " &reservoir:*")
	s := redisstore.New(server.Client(redistest.User("limiter", aclPassword)))
	l := hearOf(t, s, "a")
	require.NoError(t, l.await(true))
	for i, poor := range []string{" &other:*", " &reservoir:* -subscribe", " &reservoir:* -publish"} {
		server.SetUser("user limiter off")
		server.Do("client", "kill", "type", "pubsub")
		require.Error(t, l.await(false))
		server.SetUser("user limiter reset")
		server.SetUser(line + poor)
		require.Eventually(t, func() bool { return l.Err("k") != nil && forbidden.MatchString(l.Err("k").Error()) }, 20*time.Second, time.Millisecond, poor)
		require.Equal(t, backend.Rejected, class(t, l.Err("k")))
		key := string(rune('a' + i))
		if reply := recall(t, s, key, "a"); i != 1 {
			require.Zero(t, reply.Called+reply.Idle, "nobody is called, so there is nothing to wait for: %s", poor)
			contents, err := s.Inspect(t.Context(), key)
			require.NoError(t, err)
			require.EqualValues(t, 10, contents[0].Idle, "who may publish calls it")
		}
		server.SetUser("user limiter reset")
		server.SetUser(line + " &reservoir:*")
		require.NoError(t, l.await(true), poor)
	}

	// The right to publish is lost later: the first script that lacks it says so.
	server.SetUser(line + " &reservoir:* -publish")
	require.Zero(t, recall(t, s, "later", "a").Called)
	require.Error(t, l.await(false))
}

// TestSilence: where no message comes for a while, the sign of life needs no further right.
func TestSilence(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	line := rules(t, "limiter")
	server.SetUser(line)
	s := limiterOf(t, server, newUser(line))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	l, other := hearOf(t, s, "a"), hearOf(t, s, "b")
	require.NoError(t, l.await(true))
	require.NoError(t, other.await(true))
	if l.got == 0 { // it heard before the first look
		require.Equal(t, backend.Hearing, l.next().Kind)
	}
	other.Close() // which unsubscribes
	begun := server.Calls("subscribe")
	require.Eventually(t, func() bool { return server.Calls("subscribe") >= begun+2 }, 30*time.Second, time.Millisecond)
	require.NoError(t, l.Err("k"))
	require.Empty(t, l.mail, "and there was no change meanwhile")
}

// TestNobodyHears: a Reset and a hold of a user who may not publish are carried out, and its process knows that nobody hears of them.
func TestNobodyHears(t *testing.T) {
	server := redistest.Start(t)
	line := "user limiter on >" + aclPassword + " resetchannels ~* +@all &rl:reservoir:*"
	for _, limit := range []backend.Limit{limit10, rolling10} {
		for what, call := range map[string]func(s *redisstore.Store) error{
			"reset": func(s *redisstore.Store) error { _, err := s.Reset(t.Context(), "k", limit); return err },
			"hold": func(s *redisstore.Store) error {
				r, err := s.Sync(t.Context(), backend.Statement{Key: "k", Limit: limit, Hold: time.Minute})
				require.Positive(t, r.Held)
				return err
			},
		} {
			server.SetUser(line)
			s := limiterOf(t, server, newUser(line))
			l := hearOf(t, s, "a")
			require.NoError(t, l.await(true))
			server.SetUser(line + " -publish")
			require.NoError(t, call(s))
			require.Eventually(t, func() bool { // later it finds the same by a test of its own, which has another text
				failure, _ := errors.AsType[*backend.Error](l.Err("k"))
				return failure != nil && failure.Class == backend.Rejected && strings.Contains(failure.Error(), "may not PUBLISH from a script")
			}, 10*time.Second, 100*time.Microsecond, what)
			require.NoError(t, s.Close())
		}
	}
}

// TestListenerFollowsFailover: Sentinel promotes a replica, where the process hears again.
func TestListenerFollowsFailover(t *testing.T) {
	t.Parallel()
	servers := redistest.StartReplicated(t, 1)
	s := redisstore.New(failoverClient(t, startSentinels(t, servers, 3)))
	l := hearOf(t, s, "a")
	require.NoError(t, l.await(true))
	servers.Primary.Kill()
	require.Error(t, l.await(false))
	require.Eventually(t, func() bool { return l.Err("k") == nil }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := charge(context.Background(), s, "t", limit10, 1)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	require.EqualValues(t, 1, recall(t, s, "k", "a").Called)
	require.Equal(t, backend.Recall, l.heard().Kind)
}
