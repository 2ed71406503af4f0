package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAsked(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	const date = "Thu, 26 Nov 2026 10:00:00 GMT" // the server's clock is two hours behind
	for _, test := range []struct {
		name   string
		status int
		values []string // names and values in turns
		want   time.Duration
	}{
		{"seconds", 429, []string{"Retry-After", "30"}, 30 * time.Second},
		{"a date less the answer's", 429, []string{"Retry-After", "Thu, 26 Nov 2026 10:01:00 GMT", "Date", date}, time.Minute},
		{"a date without the answer's", 429, []string{"Retry-After", "Thu, 26 Nov 2026 12:01:00 GMT"}, time.Minute},
		{"a date that is over", 429, []string{"Retry-After", "Thu, 26 Nov 2026 09:00:00 GMT", "Date", date}, -time.Hour},
		{"none", 429, nil, 0},
		{"zero", 429, []string{"Retry-After", "0"}, 0},
		{"negative", 429, []string{"Retry-After", "-5"}, 0},
		{"no number", 429, []string{"Retry-After", "soon"}, 0},
		{"NaN", 429, []string{"Retry-After", "NaN"}, 0},
		{"hostile", 429, []string{"Retry-After", "99999999999999999999999"}, math.MaxInt64},
		{"more hostile", 429, []string{"Retry-After", "1e999"}, math.MaxInt64},
		{"a time in place of seconds", 429, []string{"Retry-After", "1795694460"}, time.Minute},
		{"a fraction", 429, []string{"Retry-After", " 0.25 "}, 250 * time.Millisecond},
		{"unavailable", 503, []string{"Retry-After", "7"}, 7 * time.Second},
		{"unavailable, without", 503, []string{"X-RateLimit-Reset", "7"}, 0},
		{"allowed", 200, []string{"Retry-After", "7"}, 0},
		{"Retry-After comes first", 429, []string{"Retry-After", "2", "RateLimit", `"a";r=0;t=9`}, 2 * time.Second},
		{"RateLimit, the longest that is used up", 429, []string{"RateLimit", `"a;r=0;t=99,\"";r=0;t=3, "b";r=0;t=5;x="r=1", "c";r=4;t=800`}, 5 * time.Second},
		{"RateLimit in two fields", 429, []string{"RateLimit", `"a";r=0;t=3`, "RateLimit", `"b";t=5;r=0`}, 5 * time.Second},
		{"RateLimit, malformed", 429, []string{"RateLimit", `r=0;;t=,t=5;r,;r=x;t=9`}, 0},
		{"RateLimit, a quote without an end", 429, []string{"RateLimit", `"a;r=0;t=3`}, 3 * time.Second},
		{"RateLimit without a time", 429, []string{"RateLimit", `"c";r=0`}, 0},
		{"RateLimit of negative figures", 429, []string{"RateLimit", `"a";r=-1;t=4, "b";r=0;t=-9`}, 4 * time.Second},
		{"RateLimit with a partition", 429, []string{"RateLimit", `default;pk=:cj0wO3Q9OQ==:;r=00 ; t=3`}, 3 * time.Second},
		{"RateLimit with something left", 429, []string{"RateLimit", `"c";r=4;t=800`}, 0},
		{"Unix time", 429, []string{"X-RateLimit-Reset", "1795694460"}, time.Minute},
		{"Unix time by the server's clock", 429, []string{"X-RateLimit-Reset", "1795694460", "Date", date}, 2*time.Hour + time.Minute},
		{"Unix time in milliseconds", 429, []string{"X-RateLimit-Reset", "1795694460000"}, time.Minute},
		{"seconds in place of a time", 429, []string{"X-RateLimit-Reset", "61"}, 61 * time.Second},
		{"another limit has refused", 429, []string{"X-RateLimit-Reset", "61", "X-RateLimit-Remaining", "12"}, 0},
		{"of a model", 429, []string{"x-ratelimit-reset-tokens", "1m2.5s", "x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-requests", "5m", "x-ratelimit-remaining-requests", "3"}, 62500 * time.Millisecond},
		{"of a model, too few tokens left", 429, []string{"x-ratelimit-reset-tokens", "20s", "x-ratelimit-remaining-tokens", "399", "x-ratelimit-reset-requests", "5m", "x-ratelimit-remaining-requests", "3"}, 20 * time.Second},
		{"of a model, by a limit that it does not show", 429, []string{"x-ratelimit-reset-tokens", "20s", "x-ratelimit-remaining-tokens", "400"}, 0},
		{"of a model, both", 429, []string{"x-ratelimit-reset-tokens", "1m2.5s", "x-ratelimit-reset-requests", "60ms"}, 62500 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &http.Response{StatusCode: test.status, Header: http.Header{}}
			for i := 0; i < len(test.values); i += 2 {
				a.Header.Add(test.values[i], test.values[i+1])
			}
			assert.InDelta(t, float64(test.want), float64(asked(a, 400, now)), 1000)
		})
	}
}

// FuzzAsked has headers of all kinds. A plain number of seconds is read as that.
func FuzzAsked(f *testing.F) {
	f.Add("30", `"a";r=0;t=30`, "1795694460", "1m2.5s", "0")
	f.Add("Thu, 26 Nov 2026 10:01:00 GMT", `"a\";`, "1e400", "-1h", "-Inf")
	f.Fuzz(func(t *testing.T, after, limit, reset, tokens, remaining string) {
		a := &http.Response{StatusCode: 429, Header: http.Header{}}
		for name, value := range map[string]string{
			"Retry-After": after, "RateLimit": limit, "X-RateLimit-Reset": reset, "X-RateLimit-Reset-Tokens": tokens, "X-RateLimit-Remaining-Tokens": remaining,
		} {
			if value != "" {
				a.Header.Set(name, value)
			}
		}
		d := asked(a, 1, time.Now())
		if n, err := strconv.ParseUint(after, 10, 29); err == nil {
			assert.Equal(t, time.Duration(n)*time.Second, d)
		}
		if after == "" {
			assert.GreaterOrEqual(t, d, time.Duration(0))
		}
	})
}
