package httplimit

import (
	"net/http"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/go-reservoir/reservoir"
)

// The headers' names as http.Header has them: written straight into the map,
// which is half the time of Header.Set.
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

// Policy is what clients are told about a limit beside its numbers. The zero
// Policy is that of New without WithPolicy.
type Policy struct {
	// Name is in X-RateLimit-Resource, RateLimit and RateLimit-Policy: printable
	// ASCII, "default" if it is empty.
	Name string

	// Window is the length of the limit's window, the w of RateLimit-Policy. The
	// field counts whole seconds, so w is left out for any other length, as it is
	// for 0. Leave it at 0 if keys have windows of different lengths, or a calendar's.
	Window time.Duration
}

// SetHeaders sets what the middleware would have set on a response that r
// decided, Retry-After included if r is a refusal, for handlers that ask the
// limiter by themselves. It sets none if r is unlimited.
func (p Policy) SetHeaders(h http.Header, r reservoir.Result) {
	f := p.compile()
	new(fields).set(h, &f, &r)
}

// format is a Policy with the constant parts of its headers made.
type format struct {
	name     string // as it is
	quota    string // "name";q=
	window   string // ;w=60, or nothing
	service  string // "name";r=
	resource []string
	seconds  int64 // the window, rounded up; 0 = not known
}

// compile panics if the name cannot be in a structured field: it is part of the
// program, like a pattern of a ServeMux.
func (p Policy) compile() format {
	if p.Name == "" {
		p.Name = "default"
	}
	item := quote(p.Name)
	f := format{
		name: p.Name, quota: item + ";q=", service: item + ";r=", resource: []string{p.Name},
		seconds: seconds(p.Window),
	}
	if p.Window > 0 && p.Window%time.Second == 0 {
		f.window = ";w=" + strconv.FormatInt(f.seconds, 10)
	}
	return f
}

// quote returns s as a String of RFC 9651.
func quote(s string) string {
	b := []byte{'"'}
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20 || c > 0x7e:
			panic("httplimit: the name of a policy is not printable ASCII: " + strconv.Quote(s))
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

// fields are the header values of one response. They live in one block, which
// the header map points into: one allocation for all, or none where fields are
// part of something that is allocated anyway.
type fields struct {
	limit, remaining, used, reset, retry [1]string
	policies, limits                     [1]string
	place                                int       // of limits in the header's list
	buf                                  [128]byte // holds all of them for names up to 15 bytes; longer ones cost an allocation
}

// set makes the values and puts them into h. Fields of outer limits stay in the
// lists of the IETF's fields. Of what is unlimited there is nothing to tell.
func (v *fields) set(h http.Header, f *format, r *reservoir.Result) {
	if r.Unlimited() {
		return
	}
	v.make(f, r)
	v.put(h, f)
	if !r.Allowed {
		h[headerRetry] = v.retry[:]
	}
}

// put puts the values into h, but for Retry-After.
func (v *fields) put(h http.Header, f *format) {
	h[headerLimit] = v.limit[:]
	h[headerRemaining] = v.remaining[:]
	h[headerUsed] = v.used[:]
	h[headerReset] = v.reset[:]
	h[headerResource] = f.resource[:1:1]
	h[headerPolicies] = list(h[headerPolicies], v.policies[:])
	v.place = len(h[headerLimits])
	h[headerLimits] = list(h[headerLimits], v.limits[:])
}

// listed reports whether h has ours in the list of limits.
func (v *fields) listed(h http.Header) bool {
	all := h[headerLimits]
	return v.place < len(all) && all[v.place] == v.limits[0]
}

// change makes other values of values that were set. Where the handler has put
// its own in the header's place, those stay.
func (v *fields) change(h http.Header, f *format, r *reservoir.Result) {
	v.own(h, f) // as long as it can be seen what is ours
	n := new(fields)
	n.make(f, r)
	v.remaining, v.used = n.remaining, n.used
	if v.listed(h) { // an inner limit may have copied it
		h[headerLimits][v.place] = n.limits[0]
	}
	v.limits = n.limits
}

// own drops what was added to our values since, as a reverse proxy does with those of the
// server behind it: a client would read two limits as one. A handler that has set others
// has the last word. The IETF's fields are lists, where both stay.
func (v *fields) own(h http.Header, f *format) {
	for _, one := range [...]struct {
		name string
		ours []string
	}{
		{headerLimit, v.limit[:]}, {headerRemaining, v.remaining[:]}, {headerUsed, v.used[:]},
		{headerReset, v.reset[:]}, {headerResource, f.resource[:1:1]},
	} {
		if all := h[one.name]; len(all) > 1 && all[0] == one.ours[0] {
			h[one.name] = one.ours // all is a copy, which change would not reach
		}
	}
}

// list returns all with one at its end. What all lies in belongs to somebody else.
func list(all, one []string) []string {
	if len(all) == 0 {
		return one
	}
	return slices.Concat(all, one)
}

// make fills in the values. Limit and Remaining are pieces of the IETF's fields.
func (v *fields) make(f *format, r *reservoir.Result) {
	all := min(r.Limit, mostInteger)
	remaining := min(max(r.Remaining, 0), all)
	wait := f.wait(r)

	b := append(v.buf[:0], f.quota...)
	limit := len(b)
	b = strconv.AppendInt(b, all, 10)
	window := len(b)
	b = append(b, f.window...)
	service := len(b)
	b = append(b, f.service...)
	left := len(b)
	b = strconv.AppendInt(b, remaining, 10)
	t := len(b)
	b = append(b, ";t="...)
	retry := len(b)
	b = strconv.AppendInt(b, wait, 10)
	used := len(b)
	b = strconv.AppendInt(b, all-remaining, 10)
	reset := len(b)
	b = strconv.AppendInt(b, unix(r.Reset), 10)

	s := frozen(b)
	v.policies[0], v.limit[0] = s[:service], s[limit:window]
	v.limits[0], v.remaining[0], v.retry[0] = s[service:used], s[left:t], s[retry:used]
	v.used[0], v.reset[0] = s[used:reset], s[reset:]
}

// mostInteger is the largest Integer of RFC 9651: of 15 digits. Larger figures are cut, in
// all headers, so that they agree.
const mostInteger = 999_999_999_999_999

// frozen is b as a string, without a copy, as strings.Builder does it: nobody
// writes to b any more. fields are never used twice for that reason.
func frozen(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// wait is the seconds until the reset, rounded up. A refusal knows it by a clock that nobody
// sets. Otherwise the clocks of store and machine may disagree, so it is no more than the
// window.
func (f *format) wait(r *reservoir.Result) int64 {
	if !r.Allowed {
		return max(seconds(r.RetryAfter), 1)
	}
	s := max(seconds(time.Until(r.Reset)), 0)
	if f.seconds > 0 {
		s = min(s, f.seconds)
	}
	return s
}

// seconds rounds up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// unix is t in seconds, rounded up; 0 if there is none.
func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return (t.UnixMilli() + 999) / 1000
}
