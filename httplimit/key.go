package httplimit

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/go-reservoir/reservoir/internal/subject"
)

// KeyFunc returns the key of the limiter that a request is charged to, or "" if
// it has none. It must be quick and safe for concurrent use. If clients can choose a part
// of the key, begin the key with a word of its own, so that it never equals a key of
// another kind.
type KeyFunc func(*http.Request) string

// ByHeader uses the value of a header, such as "header:X-Tenant:acme", which is also the key
// of gRPC metadata of that name; see grpclimit.ByMetadata. Use it for headers that a client
// cannot choose freely, such as a gateway's, because each value has a limit of its own. If
// the header occurs twice, the request has no key, because one value may be the client's and
// the other the gateway's. Host is in lower case, and has the port if the client has sent it.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	header := subject.NewHeader(name)
	if name == "Host" { // net/http has moved it out of the headers
		return func(r *http.Request) string { return header.Key(strings.ToLower(cmp.Or(r.Host, r.URL.Host))) }
	}
	return func(r *http.Request) string {
		value, _ := subject.Only(r.Header[name])
		return header.Key(value)
	}
}

// ByUser uses the user of a request, such as "user:alice". The function user returns the
// user that the request was authenticated as, for example from its context, or "". Its
// result is stored, so it should not be a secret, such as an API key, but a hash of it.
func ByUser(user func(*http.Request) string) KeyFunc {
	return func(r *http.Request) string { return subject.User(user(r)) }
}

// First uses the first of keys that returns a key for the request. A header that occurs
// twice gives none, so the next function decides.
func First(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) string {
		for _, k := range keys {
			if key := k(r); key != "" {
				return key
			}
		}
		return ""
	}
}
