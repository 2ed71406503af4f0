package httplimit

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/go-reservoir/reservoir"
)

// The headers' names in the form of http.Header, so that they can be written directly into
// the map. That takes half the time of Header.Set.
const (
	headerLimit     = "X-Ratelimit-Limit"
	headerRemaining = "X-Ratelimit-Remaining"
	headerUsed      = "X-Ratelimit-Used"
	headerReset     = "X-Ratelimit-Reset"
	headerResource  = "X-Ratelimit-Resource"
	headerPolicies  = "Ratelimit-Policy"
	headerLimits    = "Ratelimit"
	headerRetry     = "Retry-After"
)

// Policy describes a limit to clients, in addition to its numbers. New uses the zero
// Policy unless WithPolicy sets another.
type Policy struct {
	// Name is in X-RateLimit-Resource, RateLimit and RateLimit-Policy. It is printable
	// ASCII; an empty Name means "default".
	Name string
}

// SetHeaders sets the headers that the middleware would have set for the result r,
// including Retry-After if r is a refusal. It is for handlers that ask the limiter
// themselves. If r is unlimited it sets none. It panics if Name is not printable ASCII.
func (p Policy) SetHeaders(h http.Header, r reservoir.Result) {
	f := p.compile()
	v := fields{format: &f}
	v.set(h, &r, true)
}

// format is a Policy with the constant parts of its headers.
type format struct {
	quota    string // "name";q=
	service  string // "name";r=
	resource []string
}

// compile panics if the name cannot be in a structured field, because the name is part of
// the program, like a pattern of a ServeMux.
func (p Policy) compile() format {
	if p.Name == "" {
		p.Name = "default"
	}
	item := quote(p.Name)
	return format{quota: item + ";q=", service: item + ";r=", resource: []string{p.Name}}
}

// quote returns s as a String of RFC 9651.
func quote(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		panic("httplimit: the name of a policy is not printable ASCII: " + strconv.Quote(s))
	}
	return strconv.Quote(s) // of these characters, it escapes the same two
}

// fields has the header values of one response. The header map points into it, so all
// values cost one allocation, or none if fields is part of a larger value.
type fields struct {
	format                               *format
	limit, remaining, used, reset, retry [1]string
	policies, limits                     [1]string
	buf                                  [128]byte // long enough for names up to 15 bytes; longer names cost an allocation
}

// set makes the values and puts them into h, those of GitHub's headers only if single. It
// puts its items before those that are in the IETF's lists. For an unlimited result it does
// nothing.
func (v *fields) set(h http.Header, r *reservoir.Result, single bool) {
	if r.Limit == reservoir.Unlimited().Tokens {
		return
	}
	v.make(r)
	if single {
		h[headerLimit] = v.limit[:]
		h[headerRemaining] = v.remaining[:]
		h[headerUsed] = v.used[:]
		h[headerReset] = v.reset[:]
		h[headerResource] = v.format.resource[:1:1]
	}
	h[headerPolicies] = list(v.policies[:], h[headerPolicies])
	h[headerLimits] = list(v.limits[:], h[headerLimits])
	if !r.Allowed {
		h[headerRetry] = v.retry[:]
	}
}

// list returns all with one at its beginning, and changes neither.
func list(one, all []string) []string {
	if len(all) == 0 {
		return one
	}
	return slices.Concat(one, all)
}

// make fills in the values. Limit and Remaining are substrings of the IETF's fields.
func (v *fields) make(r *reservoir.Result) {
	f := v.format
	all := min(r.Limit, mostInteger)
	remaining := min(max(r.Remaining, 0), all)
	wait := wait(r)

	b := append(v.buf[:0], f.quota...)
	b = strconv.AppendInt(b, all, 10)
	quota := len(b)
	if r.Window > 0 && r.Window%time.Second == 0 { // w counts whole seconds
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, seconds(r.Window), 10)
	}
	service := len(b)
	b = append(b, f.service...)
	b = strconv.AppendInt(b, remaining, 10)
	t := len(b)
	b = append(b, ";t="...)
	b = strconv.AppendInt(b, wait, 10)
	used := len(b)
	b = strconv.AppendInt(b, all-remaining, 10)
	reset := len(b)
	b = strconv.AppendInt(b, unix(r.Reset), 10)

	s := frozen(b)
	v.policies[0], v.limit[0] = s[:service], s[len(f.quota):quota]
	v.limits[0], v.remaining[0] = s[service:used], s[service+len(f.service):t]
	v.retry[0], v.used[0], v.reset[0] = s[t+len(";t="):used], s[used:reset], s[reset:]
}

// mostInteger is the largest Integer of RFC 9651, with 15 digits. Larger numbers are capped
// in all headers, so that the headers agree.
const mostInteger = 999_999_999_999_999

// frozen returns b as a string without a copy, like strings.Builder. Nothing may write to b
// afterwards, so fields are never reused.
func frozen(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// wait returns the seconds within which the client can use no more than what remains, rounded
// up: until the reset, or RetryAfter of a refusal, from the monotonic clock. The clocks of store
// and machine may disagree, and the reset of a rolling limit may be later, so what is not refused
// waits no longer than the window.
func wait(r *reservoir.Result) int64 {
	if !r.Allowed {
		return max(seconds(r.RetryAfter), 1)
	}
	s := max(seconds(time.Until(r.Reset)), 0)
	if r.Window > 0 {
		s = min(s, seconds(r.Window))
	}
	return s
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// unix returns t in Unix seconds, rounded up, or 0 for the zero time.
func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return (t.UnixMilli() + 999) / 1000
}
