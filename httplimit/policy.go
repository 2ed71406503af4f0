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
// themselves. If r is unlimited or blocked it sets none. It panics if Name is not printable ASCII.
//
// A call puts its limit in front of the IETF's lists and replaces the other headers. So for a
// [reservoir.GroupResult] call it for [reservoir.GroupResult.Of] each limit, from the last to the
// first, but the one that refused comes last.
func (p Policy) SetHeaders(h http.Header, r reservoir.Result) {
	f := p.compile()
	var v fields
	if limits(&r) {
		v.list(&f, &r)
		v.show(&f, &r)
	}
	v.set(h)
}

// limits reports whether r is of a limit, and not of an unlimited or blocked key or of one of which
// nothing is known.
func limits(r *reservoir.Result) bool {
	return r.Limit > 0 && r.Limit != reservoir.Unlimited().Tokens
}

// knows reports whether r says how much remains. That of a Group's limit that was not asked may not.
func knows(r *reservoir.Result) bool { return !r.Allowed || r.Remaining > 0 || !r.Reset.IsZero() }

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

// fields makes the header values of one response. The header map points into it, so all
// values cost one allocation, or none if fields is part of a larger value. Names up to 15 bytes
// fit into its rooms; a longer list costs an allocation.
type fields struct {
	policies, states                     []byte // the IETF's lists
	policy, state                        [1]string
	limit, remaining, used, reset, retry [1]string
	resource                             []string // nil: GitHub's headers and Retry-After are not set
	policyRoom, stateRoom                [48]byte
	room                                 [64]byte
}

// list adds the limit of r to the IETF's lists.
func (v *fields) list(f *format, r *reservoir.Result) {
	all, left := figures(r)
	b := next(v.policies, v.policyRoom[:0], f.quota)
	b = strconv.AppendInt(b, all, 10)
	if r.Window > 0 && r.Window%time.Second == 0 { // w counts whole seconds
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, seconds(r.Window), 10)
	}
	v.policies = b
	if !knows(r) {
		return
	}
	b = next(v.states, v.stateRoom[:0], f.service)
	b = strconv.AppendInt(b, left, 10)
	b = append(b, ";t="...)
	v.states = strconv.AppendInt(b, wait(r), 10)
}

// next begins an item of a list, which is in room if it has no memory yet.
func next(list, room []byte, item string) []byte {
	switch {
	case list == nil:
		list = room
	case len(list) > 0:
		list = append(list, ", "...)
	}
	return append(list, item...)
}

// show makes GitHub's headers, and Retry-After if r is a refusal.
func (v *fields) show(f *format, r *reservoir.Result) {
	all, left := figures(r)
	b := strconv.AppendInt(v.room[:0], all, 10)
	remaining := len(b)
	b = strconv.AppendInt(b, left, 10)
	used := len(b)
	b = strconv.AppendInt(b, all-left, 10)
	reset := len(b)
	b = strconv.AppendInt(b, unix(r.Reset), 10)
	retry := len(b)
	if !r.Allowed {
		b = strconv.AppendInt(b, wait(r), 10)
	}
	s := frozen(b)
	v.limit[0], v.remaining[0], v.used[0], v.reset[0], v.retry[0] = s[:remaining], s[remaining:used], s[used:reset], s[reset:retry], s[retry:]
	v.resource = f.resource[:1:1]
}

// set puts the values into h, and its items before those that are in the IETF's lists. If
// no limit was listed, it does nothing.
func (v *fields) set(h http.Header) {
	if v.resource != nil {
		h[headerLimit] = v.limit[:]
		h[headerRemaining] = v.remaining[:]
		h[headerUsed] = v.used[:]
		h[headerReset] = v.reset[:]
		h[headerResource] = v.resource
		if v.retry[0] != "" {
			h[headerRetry] = v.retry[:]
		}
	}
	if len(v.policies) > 0 {
		v.policy[0] = frozen(v.policies)
		h[headerPolicies] = list(v.policy[:], h[headerPolicies])
	}
	if len(v.states) > 0 {
		v.state[0] = frozen(v.states)
		h[headerLimits] = list(v.state[:], h[headerLimits])
	}
}

// list returns all with one at its beginning, and changes neither.
func list(one, all []string) []string {
	if len(all) == 0 {
		return one
	}
	return slices.Concat(one, all)
}

// figures returns the limit of r and what remains, as headers may say it.
func figures(r *reservoir.Result) (all, left int64) {
	all = min(r.Limit, mostInteger)
	return all, min(max(r.Remaining, 0), all)
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
