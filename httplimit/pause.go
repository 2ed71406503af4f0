package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// asked returns for how long a server asks to be left alone by an answer that came at now, and 0 or less if it does not say.
// Nothing is made up: a minute of our own would be a pause that nobody has asked for. The request cost so many tokens.
func asked(a *http.Response, cost int64, now time.Time) time.Duration {
	if a.StatusCode != http.StatusTooManyRequests && a.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	if sent, err := http.ParseTime(a.Header.Get("Date")); err == nil { // dates are by the server's clock
		now = sent
	}
	if after := a.Header.Get("Retry-After"); after != "" || a.StatusCode == http.StatusServiceUnavailable {
		if at, err := http.ParseTime(after); err == nil {
			return at.Sub(now)
		}
		return secondsOrTime(after, now)
	}
	if d := rateLimit(a.Header.Values("RateLimit")); d > 0 {
		return d
	}
	var longest time.Duration
	for _, f := range resets {
		need := int64(1)
		if f.tokens {
			need = cost
		}
		if left, err := strconv.ParseFloat(a.Header.Get(f.remaining), 64); err == nil && left >= float64(need) {
			continue // another limit has refused
		}
		longest = max(longest, f.read(a.Header.Get(f.reset), now))
	}
	return longest
}

// resets are the older fields that say when a limit has tokens again, beside what is left of it.
var resets = []struct {
	reset, remaining string
	tokens           bool // it is short of them if it has fewer than the request needs; else if it has none
	read             func(string, time.Time) time.Duration
}{
	{"X-RateLimit-Reset", "X-RateLimit-Remaining", false, secondsOrTime},              // GitHub and many more
	{"X-RateLimit-Reset-Requests", "X-RateLimit-Remaining-Requests", false, duration}, // providers of models
	{"X-RateLimit-Reset-Tokens", "X-RateLimit-Remaining-Tokens", true, duration},      // as "1m2.5s" or "60ms"
}

// parseSeconds reads a number of seconds, which may have a fraction. What is no number is 0.
func parseSeconds(s string) time.Duration {
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	switch {
	case n >= math.MaxInt64/1e9: // also where ParseFloat says that it is too large
		return math.MaxInt64
	case err != nil || !(n > 0):
		return 0
	}
	return time.Duration(n * 1e9)
}

// Numbers from these on are Unix times, in seconds or in milliseconds: nobody is asked to wait for 30 years.
const (
	unixSeconds = 1e9
	unixMillis  = 1e12
)

func secondsOrTime(s string, now time.Time) time.Duration {
	n, _ := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if n >= unixMillis {
		n /= 1000
	}
	if n >= unixSeconds && n < math.MaxInt64/1e9 {
		return time.Unix(0, int64(n*1e9)).Sub(now)
	}
	return parseSeconds(s)
}

func duration(s string, _ time.Time) time.Duration {
	if d, err := time.ParseDuration(strings.TrimSpace(s)); err == nil {
		return d
	}
	return parseSeconds(s)
}

// rateLimit reads the field RateLimit of draft-ietf-httpapi-ratelimit-headers-11: a list such as
//
//	"burst";r=0;t=30, "day";r=512;t=40000
//
// The longest t of those with nothing left counts.
func rateLimit(fields []string) (longest time.Duration) {
	for _, item := range split(strings.Join(fields, ","), ',') {
		var used bool
		var t string
		for _, p := range split(item, ';') {
			switch name, value, _ := strings.Cut(strings.TrimSpace(p), "="); name {
			case "r":
				left, err := strconv.ParseInt(value, 10, 64)
				used = err == nil && left <= 0
			case "t":
				t = value
			}
		}
		if used {
			longest = max(longest, parseSeconds(t))
		}
	}
	return longest
}

// split cuts s at each separator that is not within quotes, as structured fields (RFC 9651) have them.
func split(s string, separator byte) (parts []string) {
	quoted, from := false, 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == separator && !quoted:
			parts, from = append(parts, s[from:i]), i+1
		}
	}
	return append(parts, s[from:])
}
