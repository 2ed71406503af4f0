package httplimit_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/httplimit"
)

var modes = map[string][]reservoir.Option{"batched": nil, "direct": {reservoir.WithDirect()}}

// door makes a middleware.
type door func(...httplimit.Option) func(http.Handler) http.Handler

// eachDoor runs test with a middleware of one limiter, and with one of a group in which it is the
// first, and two others are ample. of makes figures for all limits of the one that counts.
func eachDoor(t *testing.T, limit reservoir.Limit, opts []reservoir.Option, test func(t *testing.T, l *reservoir.Limiter, limit door, of func(int64) []int64)) {
	for mode, more := range modes {
		opts := append(more, opts...)
		t.Run(mode+"/limiter", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := open(t, limit, opts...)
				test(t, l, func(o ...httplimit.Option) func(http.Handler) http.Handler {
					return httplimit.New(l, append(o, byTenant)...)
				},
					func(used int64) []int64 { return []int64{used} })
			})
		})
		t.Run(mode+"/group", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, key := open(t, limit, opts...), httplimit.ByHeader("X-Tenant")
				g := reservoir.NewGroup(l, open(t, reservoir.PerHour(1e6), more...), open(t, reservoir.PerHour(1e6), more...))
				test(t, l, func(o ...httplimit.Option) func(http.Handler) http.Handler {
					return httplimit.NewGroup(g, append(o, httplimit.WithKey(key, key, key))...)
				}, func(used int64) []int64 { return []int64{used, 0, 0} })
			})
		})
	}
}

func costs(n int64) func(*http.Request) int64 { return func(*http.Request) int64 { return n } }

// All limits of a group are charged, each its cost, or none. Each response lists all of them. GitHub's
// headers are those of the first one, or of the one that refused.
func TestGroup(t *testing.T) {
	for mode, opts := range modes {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				users, orgs := open(t, reservoir.PerHour(100), opts...), open(t, reservoir.PerDay(6, nil), opts...)
				status := http.StatusOK
				h := httplimit.NewGroup(reservoir.NewGroup(users, orgs),
					httplimit.WithKey(httplimit.ByHeader("X-User"), httplimit.ByHeader("X-Org")),
					httplimit.WithCost(costs(30), costs(2)),
					httplimit.WithPolicy(httplimit.Policy{Name: "user"}, httplimit.Policy{Name: "org"}),
				)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
				for i, step := range []struct {
					user, org   string
					status      int
					limits      string // RateLimit
					github      string // X-RateLimit-Resource, Limit, Remaining
					users, orgs int64  // charged in all
				}{
					{"a", "x", 200, `"user";r=70;t=3600, "org";r=4;t=86400`, "user 100 70", 30, 2},
					{"a", "x", 304, `"user";r=70;t=3600, "org";r=4;t=86400`, "user 100 70", 30, 2},
					{"a", "y", 200, `"user";r=40;t=3600, "org";r=4;t=86400`, "user 100 40", 60, 4},
					{"b", "x", 200, `"user";r=70;t=3600, "org";r=2;t=86400`, "user 100 70", 90, 6},
					{"b", "x", 200, `"user";r=40;t=3600, "org";r=0;t=86400`, "user 100 40", 120, 8},
					{"b", "x", 429, `"user";r=40;t=3600, "org";r=0;t=86400`, "org 6 0", 120, 8},
					{"b", "x", 429, `"user";r=40;t=3600, "org";r=0;t=86400`, "org 6 0", 120, 8},
					{"a", "y", 200, `"user";r=10;t=3600, "org";r=2;t=86400`, "user 100 10", 150, 10},
					{"a", "y", 429, `"user";r=10;t=3600, "org";r=2;t=86400`, "user 100 10", 150, 10},
					{"a", "y", 429, `"user";r=10;t=3600, "org";r=2;t=86400`, "user 100 10", 150, 10},
					{"c", "", 400, "", "  ", 150, 10},
				} {
					status = step.status
					synctest.Wait() // what is on its way is in neither stock nor store
					headers := []string{"X-User", step.user, "X-Org", step.org}
					resp := get(h, headers...)
					require.Equal(t, step.status, resp.StatusCode, i)
					policies := `"user";q=100;w=3600, "org";q=6;w=86400`
					if step.status == 400 {
						policies = ""
					}
					require.Equal(t, policies, resp.Header.Get("RateLimit-Policy"), i)
					told, want := strings.Split(resp.Header.Get("RateLimit"), ", "), strings.Split(step.limits, ", ")
					if step.status == http.StatusTooManyRequests { // of the limit that did not refuse, tokens may be on their way
						refused := map[string]int{"user": 0, "org": 1}[resp.Header.Get("X-RateLimit-Resource")]
						told, want = told[refused:][:1], want[refused:][:1]
					}
					require.Equal(t, want, told, i)
					require.Equal(t, step.github, strings.Join([]string{
						resp.Header.Get("X-RateLimit-Resource"), resp.Header.Get("X-RateLimit-Limit"), resp.Header.Get("X-RateLimit-Remaining"),
					}, " "), i)
					require.Equal(t, step.users, spent(users), i)
					require.Equal(t, step.orgs, spent(orgs), i)
					if step.status == http.StatusTooManyRequests {
						var problem struct{ Violated []string }
						body, _ := io.ReadAll(resp.Body)
						body = []byte(strings.Replace(string(body), "violated-policies", "violated", 1))
						require.NoError(t, json.Unmarshal(body, &problem))
						require.Equal(t, []string{resp.Header.Get("X-RateLimit-Resource")}, problem.Violated)
						require.NotEmpty(t, resp.Header.Get("Retry-After"))
					} else {
						require.Empty(t, resp.Header.Get("Retry-After"))
					}
				}
			})
		})
	}
}

// A cost of nothing at all limits is no matter of theirs; one that some have not is a fault.
// A cost for all limits is asked once.
func TestCostsOfAGroup(t *testing.T) {
	a, b := open(t, reservoir.PerHour(10)), open(t, reservoir.PerHour(10))
	tenant := httplimit.ByHeader("X-Tenant")
	door := func(costs ...func(*http.Request) int64) *http.Response {
		return get(httplimit.NewGroup(reservoir.NewGroup(a, b), httplimit.WithKey(tenant, tenant), httplimit.WithCost(costs...))(answers(200)), "X-Tenant", "acme")
	}
	assert.Equal(t, 200, door(costs(0)).StatusCode)
	assert.Equal(t, 200, door(costs(0), costs(0)).StatusCode)
	assert.Equal(t, 400, door(costs(1), costs(11)).StatusCode)
	assert.Equal(t, 500, door(costs(-1), costs(1)).StatusCode)
	assert.Equal(t, 500, door(costs(0), costs(-1)).StatusCode)
	assert.Zero(t, spent(a)+spent(b))
	assert.Equal(t, 200, door(costs(0), costs(1)).StatusCode)
	assert.Equal(t, 200, door(costs(1), costs(0)).StatusCode)
	asked := 0
	assert.Equal(t, 200, door(func(*http.Request) int64 { asked++; return 4 }).StatusCode)
	assert.Equal(t, []int64{1, 5, 5}, []int64{int64(asked), spent(a), spent(b)})
	assert.Equal(t, "9", get(httplimit.NewGroup(reservoir.NewGroup(b), byTenant, httplimit.WithPolicy())(answers(200)), "X-Tenant", "other").Header.Get("X-RateLimit-Remaining"))
}

// RateLimit-Policy has all limits also if some were not asked; RateLimit has those of which this
// process knows what remains. Limits that share a name are told apart by their places.
func TestLimitsThatAreNotAsked(t *testing.T) {
	for mode, opts := range modes {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				keyed := append(slices.Clone(opts), reservoir.WithLimits(func(key string) reservoir.Limit {
					if key == "header:X-User:root" {
						return reservoir.Unlimited()
					}
					return reservoir.PerMinute(4)
				}))
				users, orgs := open(t, reservoir.PerMinute(4), keyed...), open(t, reservoir.PerHour(3), opts...)
				user, org := httplimit.ByHeader("X-User"), httplimit.ByHeader("X-Org")
				h := httplimit.NewGroup(reservoir.NewGroup(orgs, users), httplimit.WithKey(org, user), httplimit.WithCost(
					func(r *http.Request) int64 { return int64(len(r.Header["X-Write"])) }, // an organisation's limit is for writes
					costs(1),
				))(answers(200))
				const both = `"default";q=3;w=3600, "default-2";q=4;w=60`
				for i, step := range []struct {
					user, write string
					status      int
					policies    string
					limits      string // RateLimit
					github      string
				}{
					{"a", "", 200, both, `"default-2";r=3;t=60`, "default-2 3"},
					{"a", "w", 200, both, `"default";r=2;t=3600, "default-2";r=2;t=60`, "default 2"},
					{"a", "", 200, both, `"default";r=2;t=3600, "default-2";r=1;t=60`, "default-2 1"},
					{"b", "w", 200, both, `"default";r=1;t=3600, "default-2";r=3;t=60`, "default 1"},
					{"b", "w", 200, both, `"default";r=0;t=3600, "default-2";r=2;t=60`, "default 0"},
					{"b", "w", 429, both, `"default";r=0;t=3600, "default-2";r=2;t=60`, "default 0"},
					{"c", "w", 429, both, `"default";r=0;t=3600`, "default 0"},
					{"root", "w", 429, `"default";q=3;w=3600`, `"default";r=0;t=3600`, "default 0"},
				} {
					synctest.Wait() // what is on its way is in neither stock nor store
					header := []string{"X-User", step.user, "X-Org", "x"}
					if step.write != "" {
						header = append(header, "X-Write", step.write)
					}
					resp := get(h, header...)
					require.Equal(t, step.status, resp.StatusCode, i)
					require.Equal(t, step.policies, resp.Header.Get("RateLimit-Policy"), i)
					require.Equal(t, step.limits, resp.Header.Get("RateLimit"), i)
					require.Equal(t, step.github, resp.Header.Get("X-RateLimit-Resource")+" "+resp.Header.Get("X-RateLimit-Remaining"), i)
				}
			})
		})
	}
}

func TestFaultsOfAGroup(t *testing.T) {
	l := open(t, reservoir.PerHour(1))
	k, p := httplimit.ByHeader("X-Tenant"), httplimit.Policy{}
	assert.Panics(t, func() { httplimit.NewGroup(nil) })
	for name, opts := range map[string][]httplimit.Option{
		"the default key": nil, "no key": {httplimit.WithKey()}, "one key": {httplimit.WithKey(k)}, "three keys": {httplimit.WithKey(k, k, k)},
		"a key of nil":   {httplimit.WithKey(k, nil)},
		"a cost of nil":  {httplimit.WithKey(k, k), httplimit.WithCost(costs(1), nil)},
		"three costs":    {httplimit.WithKey(k, k), httplimit.WithCost(costs(1), costs(1), costs(1))},
		"three policies": {httplimit.WithKey(k, k), httplimit.WithPolicy(p, p, p)},
	} {
		assert.Panics(t, func() { httplimit.NewGroup(reservoir.NewGroup(l, l), opts...) }, name)
	}
	assert.NotPanics(t, func() {
		httplimit.NewGroup(reservoir.NewGroup(l, l), httplimit.WithKey(k, k), httplimit.WithCost(costs(1), costs(1)), httplimit.WithPolicy(p))
	})
	assert.Panics(t, func() { httplimit.New(l, httplimit.WithKey(k, k)) })
	assert.Panics(t, func() { httplimit.New(l, httplimit.WithPolicy(p, p)) })
}

// What was really used is what is charged and told, by whichever way the handler answers.
func TestSettle(t *testing.T) {
	type steps = []int64
	for name, c := range map[string]struct {
		before steps // settled, one after the other, before the status is sent
		status int
		after  steps // and after it
		told   int64
		used   int64
	}{
		"less":                      {steps{2}, 200, nil, 98, 2},
		"nothing":                   {steps{0}, 200, nil, 100, 0},
		"as much":                   {steps{5}, 200, nil, 95, 5},
		"more":                      {steps{60}, 200, nil, 40, 60},
		"more than the limit":       {steps{250}, 200, nil, 0, 250},
		"the last counts":           {steps{250, 0, 70, 7}, 200, nil, 93, 7},
		"too late to be told":       {nil, 200, steps{30, 20}, 95, 20},
		"again when it is too late": {steps{3}, 200, steps{4}, 97, 4},
		"a refund":                  {nil, 304, nil, 100, 0},
		"and a refund":              {steps{2}, 304, nil, 100, 0},
		"more, and a refund":        {steps{250}, 304, nil, 100, 0},
		"after a refund":            {nil, 304, steps{9}, 100, 0},
		"and a panic":               {steps{2}, 200, steps{8, -100}, 98, 8},
	} {
		t.Run(name, func(t *testing.T) {
			eachDoor(t, reservoir.PerHour(100), nil, func(t *testing.T, l *reservoir.Limiter, limit door, of func(int64) []int64) {
				h := limit(httplimit.WithCost(costs(5)))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					for _, n := range c.before {
						assert.NoError(t, httplimit.Settle(wrapper{w}, of(n)...))
						r, _ := httplimit.ResultOf(w)
						assert.Equal(t, max(100-n, 0), r.Remaining)
					}
					w.WriteHeader(c.status)
					for _, n := range c.after {
						if n < 0 {
							panic(http.ErrAbortHandler)
						}
						assert.NoError(t, httplimit.Settle(w, of(n)...))
						r, _ := httplimit.ResultOf(w)
						assert.Equal(t, c.told, r.Remaining, "as the headers have it")
					}
				}))
				w := httptest.NewRecorder()
				func() {
					defer func() { _ = recover() }()
					h.ServeHTTP(w, request("", "X-Tenant", "acme"))
				}()
				resp := w.Result()
				require.Equal(t, c.status, resp.StatusCode)
				require.Equal(t, c.told, number(t, resp, "X-RateLimit-Remaining"))
				require.Equal(t, 100-c.told, number(t, resp, "X-RateLimit-Used"))
				synctest.Wait() // what was used above the stock is on its way
				require.Equal(t, c.used, spent(l))
			})
		})
	}
}

func TestSettleOfNonsense(t *testing.T) {
	eachDoor(t, reservoir.PerHour(100), nil, func(t *testing.T, l *reservoir.Limiter, limit door, of func(int64) []int64) {
		get(limit()(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			assert.ErrorIs(t, httplimit.Settle(w), reservoir.ErrOption)
			assert.ErrorIs(t, httplimit.Settle(w, append(of(1), 1)...), reservoir.ErrOption)
			assert.ErrorIs(t, httplimit.Settle(w, of(-1)...), backend.ErrTokens)
			assert.ErrorIs(t, httplimit.Settle(w, of(1<<60)...), backend.ErrTokens)
		})), "X-Tenant", "acme")
		assert.EqualValues(t, 1, spent(l))
	})
	assert.NoError(t, httplimit.Settle(wrapper{httptest.NewRecorder()}, 5), "it was not limited")
	_, ok := httplimit.ResultOf(wrapper{httptest.NewRecorder()})
	assert.False(t, ok)
}

// limitHeaders are those that h has of a limit.
func limitHeaders(h http.Header) (names []string) {
	for name := range h {
		if strings.Contains(name, "atelimit") || name == "Retry-After" {
			names = append(names, name)
		}
	}
	return names
}

// Where nothing is limited there is nothing to tell, and nothing to settle.
func TestUnlimited(t *testing.T) {
	for mode, more := range modes {
		opts := append(more, reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.Unlimited() }))
		a, b := open(t, reservoir.PerHour(1), opts...), open(t, reservoir.PerHour(1), opts...)
		tenant := httplimit.ByHeader("X-Tenant")
		for name, door := range map[string]func(http.Handler) http.Handler{
			"limiter": httplimit.New(a, byTenant),
			"group":   httplimit.NewGroup(reservoir.NewGroup(a, b), httplimit.WithKey(tenant, tenant)),
		} {
			for _, status := range []int{200, 304} {
				resp := get(door(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					before, _ := httplimit.ResultOf(w)
					assert.True(t, before.Allowed && before.Limit == reservoir.Unlimited().Tokens)
					assert.True(t, httplimit.Settle(w, 5) == nil || httplimit.Settle(w, 5, 5) == nil)
					after, _ := httplimit.ResultOf(w)
					assert.Equal(t, before, after)
					w.Header().Add("X-Ratelimit-Resource", "default")
					w.Header().Add("X-Ratelimit-Resource", "a handler's own")
					w.WriteHeader(status)
				})), "X-Tenant", "acme")
				assert.Equal(t, status, resp.StatusCode)
				assert.Equal(t, []string{"X-Ratelimit-Resource"}, limitHeaders(resp.Header), "%s, %s", mode, name)
				assert.Len(t, resp.Header["X-Ratelimit-Resource"], 2)
			}
		}
	}
	h := http.Header{}
	httplimit.Policy{}.SetHeaders(h, reservoir.Result{Allowed: true, Limit: reservoir.Unlimited().Tokens, Remaining: reservoir.Unlimited().Tokens})
	assert.Empty(t, h)
}

// In shadow the handler runs, and no header says that it should not have. What was not
// charged is not given back.
func TestShadowed(t *testing.T) {
	eachDoor(t, reservoir.Limit{Tokens: 4, Window: time.Hour, Shadow: true}, nil, func(t *testing.T, l *reservoir.Limiter, limit door, of func(int64) []int64) {
		shadowed, status := 0, 200
		h := limit(httplimit.WithCost(costs(2)))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			r, _ := httplimit.ResultOf(w)
			if r.Shadowed {
				shadowed++
				assert.NoError(t, httplimit.Settle(w, of(0)...))
			}
			w.WriteHeader(status)
		}))
		for i := range 6 {
			if i == 4 {
				status = 304
			}
			resp := get(h, "X-Tenant", "acme")
			require.Equal(t, status, resp.StatusCode)
			require.Equal(t, max(2-2*int64(i), 0), number(t, resp, "X-RateLimit-Remaining"), i)
			require.Empty(t, resp.Header.Get("Retry-After"))
		}
		assert.Equal(t, 4, shadowed)
		assert.EqualValues(t, 4, spent(l))
	})
}
