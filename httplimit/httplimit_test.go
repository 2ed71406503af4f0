package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/httplimit"
)

var byTenant = httplimit.WithKey(httplimit.ByHeader("X-Tenant"))

// number is a header that must be one.
func number(t *testing.T, resp *http.Response, name string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(resp.Header.Get(name), 10, 64)
	require.NoError(t, err, name)
	return n
}

// Every response of a window says the same of it, and all numbers of a response
// agree, refusals included.
func TestHeadersAgree(t *testing.T) {
	for _, direct := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var opts []reservoir.Option
			if direct {
				opts = append(opts, reservoir.WithDirect())
			}
			l := open(t, reservoir.PerMinute(100), opts...)
			h := httplimit.New(l, byTenant, httplimit.WithPolicy(httplimit.Policy{Name: "core"}))(answers(http.StatusOK))
			begin := time.Now().Unix()
			for i := range int64(120) {
				resp := get(h, "X-Tenant", "acme")
				want := http.StatusOK
				if i >= 100 {
					want = http.StatusTooManyRequests
				}
				require.Equal(t, want, resp.StatusCode, i)
				require.EqualValues(t, 100, number(t, resp, "X-RateLimit-Limit"))
				left := number(t, resp, "X-RateLimit-Remaining")
				require.LessOrEqual(t, left, max(99-i, 0))
				if direct || i >= 99 { // a batch on its way may be in neither of the numbers that are added up
					require.Equal(t, max(99-i, 0), left)
				}
				require.Equal(t, 100-left, number(t, resp, "X-RateLimit-Used"))
				require.Equal(t, begin+60, number(t, resp, "X-RateLimit-Reset"), "no wobble")
				require.Equal(t, `"core";q=100;w=60`, resp.Header.Get("RateLimit-Policy"))
				wait := number(t, resp, "X-RateLimit-Reset") - time.Now().Unix() // of whole seconds, here
				if i < 100 {
					require.Empty(t, resp.Header.Get("Retry-After"))
				} else {
					require.InDelta(t, wait, number(t, resp, "Retry-After"), 1)
					wait = number(t, resp, "Retry-After")
				}
				require.Equal(t, `"core";r=`+strconv.FormatInt(left, 10)+`;t=`+strconv.FormatInt(wait, 10), resp.Header.Get("RateLimit"))
				if i%10 == 9 {
					time.Sleep(time.Second)
				}
			}
		})
	}
}

func TestCost(t *testing.T) {
	l := open(t, reservoir.PerHour(10))
	h := httplimit.New(l, byTenant, httplimit.WithCost(func(r *http.Request) int64 {
		n, _ := strconv.ParseInt(r.Header.Get("Cost"), 10, 64)
		return n
	}))(answers(http.StatusOK))
	resp := get(h, "X-Tenant", "acme", "Cost", "7")
	assert.Equal(t, "3", resp.Header.Get("X-RateLimit-Remaining"))
	resp = get(h, "Cost", "0")
	assert.Equal(t, http.StatusOK, resp.StatusCode, "a request that costs nothing needs no key")
	assert.Empty(t, resp.Header.Get("X-RateLimit-Limit"))
	assert.Equal(t, http.StatusTooManyRequests, get(h, "X-Tenant", "acme", "Cost", "4").StatusCode)
	assert.Equal(t, http.StatusOK, get(h, "X-Tenant", "acme", "Cost", "3").StatusCode)
	resp = get(h, "X-Tenant", "acme", "Cost", "11")
	assert.Equal(t, http.StatusBadRequest, resp.StatusCode)
	assert.Empty(t, resp.Header.Get("Retry-After"), "no waiting would help")
	assert.Equal(t, http.StatusInternalServerError, get(h, "X-Tenant", "acme", "Cost", "-1").StatusCode)
	assert.EqualValues(t, 10, spent(l))
}

func TestRequestsWithoutKey(t *testing.T) {
	l := open(t, reservoir.PerHour(10))
	reached := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler was reached") })
	resp := get(httplimit.New(l, byTenant)(reached))
	assert.Equal(t, http.StatusBadRequest, resp.StatusCode)
	resp = get(httplimit.New(l, byTenant)(reached), "X-Tenant", strings.Repeat("x", 5000))
	assert.Equal(t, http.StatusBadRequest, resp.StatusCode)
	assert.Zero(t, l.Stats().StoreCalls)

	resp = get(httplimit.New(l)(answers(http.StatusOK)))
	assert.Equal(t, http.StatusOK, resp.StatusCode, "by address, if nothing is said")
}

func TestStoreAway(t *testing.T) {
	l, err := reservoir.New(away{memstore.New()}, reservoir.PerHour(10))
	require.NoError(t, err)
	defer l.Close(context.Background()) // whose error is the store's
	resp := get(httplimit.New(l, byTenant)(answers(http.StatusOK)), "X-Tenant", "acme")
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Equal(t, "1", resp.Header.Get("Retry-After"))
	assert.Empty(t, resp.Header.Get("X-RateLimit-Limit"), "nothing is known")

	ok := open(t, reservoir.PerHour(10))
	key := httplimit.ByHeader("X-Tenant")
	group := httplimit.NewGroup(reservoir.NewGroup(ok, l), httplimit.WithKey(key, key))(answers(http.StatusOK))
	assert.Equal(t, http.StatusServiceUnavailable, get(group, "X-Tenant", "acme").StatusCode)
	assert.Zero(t, spent(ok), "none is charged")

	var got error
	own := httplimit.New(l, byTenant, httplimit.WithErrorHandler(func(w http.ResponseWriter, _ *http.Request, err error, _ http.Handler) {
		got = err
		w.WriteHeader(http.StatusTeapot)
	}))(answers(http.StatusOK))
	assert.Equal(t, http.StatusTeapot, get(own, "X-Tenant", "acme").StatusCode)
	var store *reservoir.StoreError
	assert.True(t, errors.As(got, &store))
}

func TestClosedLimiterAndCancelledRequest(t *testing.T) {
	l, err := reservoir.New(memstore.New(), reservoir.PerHour(10))
	require.NoError(t, err)
	h := httplimit.New(l, byTenant)(answers(http.StatusOK))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request("", "X-Tenant", "acme").WithContext(ctx))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.NoError(t, l.Close(t.Context()))
	assert.Equal(t, http.StatusServiceUnavailable, get(h, "X-Tenant", "acme").StatusCode)
}

func TestRefusedByOneself(t *testing.T) {
	l := open(t, reservoir.PerHour(1))
	h := httplimit.New(l, byTenant, httplimit.WithRefused(func(w http.ResponseWriter, _ *http.Request, r reservoir.Result) {
		w.WriteHeader(http.StatusForbidden) // as GitHub did
		_, _ = io.WriteString(w, strconv.FormatInt(r.Limit, 10))
	}))(answers(http.StatusOK))
	get(h, "X-Tenant", "acme")
	resp := get(h, "X-Tenant", "acme")
	assert.Equal(t, http.StatusForbidden, resp.StatusCode)
	assert.InDelta(t, 3600, number(t, resp, "Retry-After"), 60)
}

// Each outer limit stays in the lists of the IETF's fields. GitHub's headers, Settle and the
// refund of a refusal are about the inner one.
func TestNestedLimits(t *testing.T) {
	global, each := open(t, reservoir.PerHour(100)), open(t, reservoir.PerHour(2))
	outer := httplimit.New(global, httplimit.WithKey(func(*http.Request) string { return "all" }),
		httplimit.WithPolicy(httplimit.Policy{Name: "global"}),
		httplimit.WithRefund(httplimit.Status(http.StatusTooManyRequests, http.StatusNotModified)))
	inner := httplimit.New(each, byTenant, httplimit.WithPolicy(httplimit.Policy{Name: "tenant"}))

	h := outer(inner(answers(http.StatusNotModified)))
	resp := get(h, "X-Tenant", "acme")
	assert.Equal(t, []string{`"global";q=100;w=3600`, `"tenant";q=2;w=3600`}, resp.Header["Ratelimit-Policy"])
	assert.Regexp(t, `^"global";r=100;`, resp.Header["Ratelimit"][0])
	assert.Regexp(t, `^"tenant";r=2;`, resp.Header["Ratelimit"][1])
	assert.Equal(t, "tenant", resp.Header.Get("X-RateLimit-Resource"))

	h = outer(inner(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { assert.NoError(t, httplimit.Settle(w, 2)) })))
	for _, want := range []int{200, 429, 429} {
		resp = get(h, "X-Tenant", "acme")
		require.Equal(t, want, resp.StatusCode)
		assert.Regexp(t, `^"global";r=99;`, resp.Header["Ratelimit"][0])
		assert.Regexp(t, `^"tenant";r=0;`, resp.Header["Ratelimit"][1])
		assert.Equal(t, "0", resp.Header.Get("X-RateLimit-Remaining"))
	}
	assert.Equal(t, []int64{1, 2}, []int64{spent(global), spent(each)}, "what the inner limit refused was given back")
}

func TestProblemDocument(t *testing.T) {
	l := open(t, reservoir.PerHour(1))
	h := httplimit.New(l, byTenant, httplimit.WithPolicy(httplimit.Policy{Name: `a "b"`}))(answers(http.StatusOK))
	get(h, "X-Tenant", "acme")
	resp := get(h, "Accept", "text/html", "X-Tenant", "acme")
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"), "whatever the client accepts")
	require.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title":"Quota exceeded","status":429,"violated-policies":["a \"b\""],
		"detail":"Retry-After says in how many seconds there will be more."}`, string(body))
}

func TestFaultsOfTheProgram(t *testing.T) {
	assert.Panics(t, func() { httplimit.New(nil) })
	for _, o := range []httplimit.Option{
		httplimit.WithKey(nil), httplimit.WithCost(nil), httplimit.WithErrorHandler(nil),
	} {
		assert.Panics(t, func() { httplimit.New(open(t, reservoir.PerHour(1)), o) })
	}
	none := httplimit.New(open(t, reservoir.PerHour(1)), byTenant, httplimit.WithRefused(nil), httplimit.WithRefund(nil))
	assert.Equal(t, http.StatusOK, get(none(answers(http.StatusOK)), "X-Tenant", "acme").StatusCode)
	assert.Equal(t, http.StatusTooManyRequests, get(none(answers(http.StatusOK)), "X-Tenant", "acme").StatusCode)
	assert.Panics(t, func() {
		httplimit.New(open(t, reservoir.PerHour(1)), httplimit.WithPolicy(httplimit.Policy{Name: "\n"}))
	})
}

// The headers of a rolling limit: what remains now, a reset at which all of it is free again at
// the latest, and a Retry-After at which something is.
func TestHeadersOfRollingLimit(t *testing.T) {
	for mode, opts := range modes {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := open(t, reservoir.PerMinute(100).Rolling(), append([]reservoir.Option{reservoir.WithFetchTimeout(time.Second)}, opts...)...)
				h := httplimit.New(l, byTenant)(answers(http.StatusOK))
				spend := func(from int64) {
					for left := from; left > from-50; left-- {
						resp := get(h, "X-Tenant", "acme")
						require.Equal(t, http.StatusOK, resp.StatusCode)
						require.LessOrEqual(t, number(t, resp, "X-RateLimit-Remaining"), left)
						if mode == "direct" || left == 0 { // with batches a part may be in a call, or count from a later slice
							require.Equal(t, left, number(t, resp, "X-RateLimit-Remaining"))
						}
						require.Equal(t, `"default";q=100;w=60`, resp.Header.Get("RateLimit-Policy"))
						require.Contains(t, resp.Header.Get("RateLimit"), ";t=60", "the window, of which Reset is no earlier end")
						reset := number(t, resp, "X-RateLimit-Reset")
						require.GreaterOrEqual(t, reset, time.Now().Unix()+60)
						require.LessOrEqual(t, reset, time.Now().Unix()+84)
					}
				}
				spend(99)
				time.Sleep(30 * time.Second)
				spend(49)
				resp := get(h, "X-Tenant", "acme")
				require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
				after := number(t, resp, "Retry-After")
				require.Equal(t, `"default";r=0;t=`+strconv.FormatInt(after, 10), resp.Header.Get("RateLimit"))
				require.Less(t, after, number(t, resp, "X-RateLimit-Reset")-time.Now().Unix()-20, "half of it is free earlier")
				time.Sleep(time.Duration(after)*time.Second - time.Second)
				if mode == "direct" { // with batches it may be earlier: when the store hears in which slice they were spent
					require.Equal(t, http.StatusTooManyRequests, get(h, "X-Tenant", "acme").StatusCode)
				}
				time.Sleep(time.Second)
				resp = get(h, "X-Tenant", "acme")
				require.Equal(t, http.StatusOK, resp.StatusCode)

				time.Sleep(time.Until(time.Unix(number(t, resp, "X-RateLimit-Reset"), 0)))
				r, err := l.Check(t.Context(), "header:X-Tenant:acme")
				require.NoError(t, err)
				require.EqualValues(t, 100, r.Remaining)
			})
		})
	}
}
