package httplimit

import (
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// asked returns for how long a server asks to be left alone by an answer that came at now, and 0 or less if it does not say.
// Nothing is made up: a minute of our own would be a pause that nobody has asked for. The request cost so many tokens.
func asked(a *http.Response, cost int64, now time.Time) (longest time.Duration) {
	if a.StatusCode != http.StatusTooManyRequests && a.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	if sent, err := http.ParseTime(a.Header.Get("Date")); err == nil { // dates are by the server's clock
		now = sent
	}
	if after := a.Header.Get("Retry-After"); after != "" || a.StatusCode == http.StatusServiceUnavailable {
		return parse(after, now)
	}
	// The field RateLimit of draft-ietf-httpapi-ratelimit-headers-11 is a list such as
	//
	//	"burst";r=0;t=30, "day";r=512;t=40000
	//
	// The longest t of those with nothing left counts.
	for _, item := range items.FindAllString(strings.Join(a.Header.Values("RateLimit"), ","), -1) {
		left, t := int64(1), ""
		for _, p := range parameters.FindAllString(item, -1) {
			switch name, value, _ := strings.Cut(strings.TrimSpace(p), "="); name {
			case "r":
				if n, err := strconv.ParseInt(value, 10, 64); err == nil {
					left = n
				}
			case "t":
				t = value
			}
		}
		if left <= 0 {
			longest = max(longest, parse(t, now))
		}
	}
	if longest > 0 {
		return longest
	}
	// The older fields say when a limit has tokens again, beside what is left of it.
	for _, f := range []struct {
		reset, remaining string
		need             int64 // another limit has refused if so many are left
	}{
		{"X-RateLimit-Reset", "X-RateLimit-Remaining", 1},                   // GitHub and many more
		{"X-RateLimit-Reset-Requests", "X-RateLimit-Remaining-Requests", 1}, // providers of models
		{"X-RateLimit-Reset-Tokens", "X-RateLimit-Remaining-Tokens", cost},
	} {
		if left, err := strconv.ParseFloat(a.Header.Get(f.remaining), 64); err != nil || left < float64(f.need) {
			longest = max(longest, parse(a.Header.Get(f.reset), now))
		}
	}
	return longest
}

// Separators within quotes are none, in structured fields (RFC 9651).
var items, parameters = regexp.MustCompile(`(?:"(?:[^"\\]|\\.)*"|[^,])+`), regexp.MustCompile(`(?:"(?:[^"\\]|\\.)*"|[^;])+`)

// parse reads how long a field asks to wait: seconds, which may have a fraction, a date, a Unix time in seconds or milliseconds, because nobody
// is asked to wait for 30 years, or "1m2.5s". What is none of these is 0.
func parse(s string, now time.Time) time.Duration {
	s = strings.TrimSpace(s)
	if at, err := http.ParseTime(s); err == nil {
		return at.Sub(now)
	}
	if d, err := time.ParseDuration(s); err == nil {
		return d
	}
	n, _ := strconv.ParseFloat(s, 64) // infinite if it is too large
	if n >= 1e12 {
		n /= 1000
	}
	if n >= 1e9 {
		n -= float64(now.UnixNano()) / 1e9
	}
	switch {
	case n >= math.MaxInt64/1e9:
		return math.MaxInt64
	case n > 0:
		return time.Duration(n * 1e9)
	}
	return 0 // also if it is negative or NaN
}
