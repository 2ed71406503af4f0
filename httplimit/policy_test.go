package httplimit_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/httplimit"
)

func TestSetHeaders(t *testing.T) {
	core := httplimit.Policy{Name: "core"}
	const in = 90*time.Second + 400*time.Millisecond // until the reset
	for _, test := range []struct {
		name   string
		policy httplimit.Policy
		result reservoir.Result
		want   [8]string // Limit, Remaining, Used, Reset, Resource, RateLimit-Policy, RateLimit, Retry-After
	}{
		{
			"allowed", core, reservoir.Result{Allowed: true, Limit: 5000, Window: time.Hour, Remaining: 4987},
			[8]string{"5000", "4987", "13", "946684891", "core", `"core";q=5000;w=3600`, `"core";r=4987;t=91`, ""},
		},
		{
			"refused", core, reservoir.Result{Limit: 5000, Window: time.Hour, RetryAfter: in + time.Second},
			[8]string{"5000", "0", "5000", "946684891", "core", `"core";q=5000;w=3600`, `"core";r=0;t=92`, "92"},
		},
		{
			"refused for a moment", core, reservoir.Result{Limit: 5, Window: time.Hour, RetryAfter: 1},
			[8]string{"5", "0", "5", "946684891", "core", `"core";q=5;w=3600`, `"core";r=0;t=1`, "1"},
		},
		{
			"the zero policy", httplimit.Policy{}, reservoir.Result{Allowed: true, Limit: 1, Window: 2 * time.Minute},
			[8]string{"1", "0", "1", "946684891", "default", `"default";q=1;w=120`, `"default";r=0;t=91`, ""},
		},
		{
			"a result that knows no window", httplimit.Policy{}, reservoir.Result{Allowed: true, Limit: 1},
			[8]string{"1", "0", "1", "946684891", "default", `"default";q=1`, `"default";r=0;t=91`, ""},
		},
		{
			"a store's clock ahead of ours", httplimit.Policy{}, reservoir.Result{Allowed: true, Limit: 1, Window: time.Minute},
			[8]string{"1", "0", "1", "946684891", "default", `"default";q=1;w=60`, `"default";r=0;t=60`, ""},
		},
		{
			"a refusal that lasts longer than the window", httplimit.Policy{}, reservoir.Result{Limit: 1, Window: time.Minute, RetryAfter: in},
			[8]string{"1", "0", "1", "946684891", "default", `"default";q=1;w=60`, `"default";r=0;t=91`, "91"},
		},
		{
			"a window that is not of whole seconds", httplimit.Policy{}, reservoir.Result{Allowed: true, Limit: 1, Window: 1500 * time.Millisecond},
			[8]string{"1", "0", "1", "946684891", "default", `"default";q=1`, `"default";r=0;t=2`, ""},
		},
		{
			"a limit that was lowered", core, reservoir.Result{Allowed: true, Limit: 10, Window: time.Hour, Remaining: 12},
			[8]string{"10", "10", "0", "946684891", "core", `"core";q=10;w=3600`, `"core";r=10;t=91`, ""},
		},
		{
			"a name to be quoted, too long for the buffer", httplimit.Policy{Name: `a "per user" limit\month, of 2^53-1 requests`},
			reservoir.Result{Allowed: true, Limit: 1<<53 - 1, Remaining: 1<<53 - 2},
			[8]string{
				"999999999999999", "999999999999999", "0", "946684891", `a "per user" limit\month, of 2^53-1 requests`,
				`"a \"per user\" limit\\month, of 2^53-1 requests";q=999999999999999`,
				`"a \"per user\" limit\\month, of 2^53-1 requests";r=999999999999999;t=91`, "",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // it is 2000-01-01, 946684800
				test.result.Reset = time.Now().Add(in)
				h := http.Header{}
				test.policy.SetHeaders(h, test.result)
				assert.Equal(t, test.want, [8]string{
					h.Get("X-RateLimit-Limit"), h.Get("X-RateLimit-Remaining"), h.Get("X-RateLimit-Used"), h.Get("X-RateLimit-Reset"),
					h.Get("X-RateLimit-Resource"), h.Get("RateLimit-Policy"), h.Get("RateLimit"), h.Get("Retry-After"),
				})
			})
		})
	}
}

func TestResultWithoutWindow(t *testing.T) {
	h := http.Header{}
	httplimit.Policy{}.SetHeaders(h, reservoir.Result{Allowed: true, Limit: 5, Remaining: 5}) // Check of a fresh key
	assert.Equal(t, "0", h.Get("X-RateLimit-Reset"))
	assert.Equal(t, `"default";r=5;t=0`, h.Get("RateLimit"))
}

func TestNameThatNoHeaderCanHold(t *testing.T) {
	for _, name := range []string{"a\nb", "é", "\x7f", "\x00"} {
		assert.Panics(t, func() { httplimit.Policy{Name: name}.SetHeaders(http.Header{}, reservoir.Result{}) }, name)
	}
}
