package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// held is three processes, the first of which holds a limit, and what happens to the server then.
type held struct {
	stores []backend.Store
	now    func() time.Time // by the server's clock
	begin  func()           // before the hold; nil = nothing
	then   func()           // after it
	lost   bool             // what happens loses the hold
}

// TestHeld: after a hold each process spends what it has at most, asks, and then admits nobody before the end, by the server's
// clock, whatever happens to the server; and soon after it somebody again. Where the hold is lost, that is within a window.
func TestHeld(t *testing.T) {
	t.Parallel()
	for name, scene := range map[string]func(t *testing.T) held{
		"one server": func(t *testing.T) held { return heldOn(t, redistest.Start(t), func(*redistest.Server) {}) },
		"connections cut": func(t *testing.T) held {
			return heldOn(t, redistest.Start(t), func(s *redistest.Server) {
				s.Do("client", "kill", "type", "normal")
				s.Do("client", "kill", "type", "pubsub")
			})
		},
		"no right to publish": func(t *testing.T) held {
			s := redistest.Start(t)
			s.SetUser("user poor on >" + aclPassword + " ~* &* +@all -publish")
			return heldOn(t, s, func(*redistest.Server) {}, redistest.User("poor", aclPassword))
		},
		"one process hangs": func(t *testing.T) held {
			s, proxy := redistest.Start(t), (*redistest.Proxy)(nil)
			h := heldOn(t, s, func(*redistest.Server) {
				require.Eventually(t, func() bool { return proxy.Held() > 0 }, 10*time.Second, time.Millisecond, "the message is on its way")
				proxy.Hold(false)
			})
			proxy = redistest.NewProxy(t, s.Addr())
			h.stores[2] = redisstore.New(s.Client(unhurried, func(o *redis.Options) { o.Addr = proxy.Addr() }))
			h.begin = func() { proxy.Hold(true) }
			return h
		},
		"the slot moves": func(t *testing.T) held {
			c := redistest.StartCluster(t, 2, 0)
			from := c.NodeOf("{k}")
			to := c.Nodes[0]
			if to == from {
				to = c.Nodes[1]
			}
			h := heldOn(t, from, func(*redistest.Server) {
				c.Reshard(from, to, []int{c.SlotOf("{k}")})
				require.Equal(t, to, c.NodeOf("{k}"))
			})
			for i := range h.stores {
				h.stores[i] = redisstore.New(c.Client(documentedCluster))
			}
			return h
		},
		"failover":                         func(t *testing.T) held { return heldFailover(t, false) },
		"failover to who knows of no hold": func(t *testing.T) held { return heldFailover(t, true) },
		"the ledger is deleted": func(t *testing.T) held {
			h := heldOn(t, redistest.Start(t), func(s *redistest.Server) { s.Do("del", "{k}:1s:own", "{k}:1s:roll") })
			h.lost = true
			return h
		},
	} {
		for kind, limit := range map[string]reservoir.Limit{"fixed": reservoir.PerSecond(20), "rolling": reservoir.PerSecond(20).Rolling()} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				scene(t).play(t, limit)
			})
		}
	}
}

func heldOn(t *testing.T, s *redistest.Server, then func(*redistest.Server), opts ...func(*redis.Options)) (h held) {
	for range 3 {
		h.stores = append(h.stores, redisstore.New(s.Client(append(opts, unhurried)...)))
	}
	h.now = func() time.Time {
		now, err := s.Client().Time(context.Background()).Result()
		require.NoError(t, err)
		return now
	}
	h.then = func() { then(s) }
	return h
}

// heldFailover is a failover to a replica, which lags if lost.
func heldFailover(t *testing.T, lost bool) held {
	r := redistest.StartReplicated(t, 1)
	link, proxy := r.Link(0), redistest.NewProxy(t, r.Primary.Addr())
	h := heldOn(t, r.Replicas[0], func(s *redistest.Server) {
		if !lost {
			r.AwaitSync()
		}
		r.Primary.Kill()
		link.Cut()
		r.Promote(0)
		proxy.Lead(s.Addr())
		proxy.Cut()
	}, func(o *redis.Options) { o.Addr = proxy.Addr() })
	h.begin, h.lost = func() { link.Hold(lost) }, lost
	return h
}

func (h held) play(t *testing.T, limit reservoir.Limit) {
	var all []*reservoir.Limiter
	for _, s := range h.stores {
		l, err := reservoir.New(s, limit, patient)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
		_, err = l.Allow(t.Context(), "k")
		require.NoError(t, err)
		all = append(all, l)
	}
	d := 2 * time.Second
	if h.lost {
		d = time.Hour
	}
	if h.begin != nil {
		h.begin()
	}
	ends := h.now().Add(d) // or later
	require.NoError(t, all[0].Hold(t.Context(), "k", d))
	if h.lost {
		h.refuses(t, all, ends)
	}
	h.then()
	if !h.lost {
		h.refuses(t, all, ends)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, l := range all {
		if h.lost {
			require.Eventually(t, func() bool {
				r, err := l.Allow(ctx, "k")
				return err == nil && r.Allowed
			}, 30*time.Second, time.Millisecond, "process %d", i)
			require.True(t, h.now().Before(ends))
			continue
		}
		_, err := l.Wait(ctx, "k")
		for err != nil && ctx.Err() == nil { // the server is on its way
			_, err = l.Wait(ctx, "k")
		}
		require.NoError(t, err)
		require.False(t, h.now().Before(ends), "process %d sends early", i)
	}
}

// refuses waits until each process has refused a request; or the hold is over, on a slow machine.
func (h held) refuses(t *testing.T, all []*reservoir.Limiter, ends time.Time) {
	for i, l := range all {
		require.Eventually(t, func() bool {
			r, err := l.Allow(t.Context(), "k")
			return err == nil && !r.Allowed || !h.now().Before(ends)
		}, 30*time.Second, time.Millisecond, "process %d", i)
	}
}
