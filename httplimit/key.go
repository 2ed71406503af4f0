package httplimit

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
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
	return func(r *http.Request) string { return header.Key(only(r, name)) }
}

// ByToken uses "token:" and a hash of a header that proves the client's identity, such as
// Authorization or an API key. The hash keeps secrets out of the store. ByToken does not
// verify tokens, so put it behind a handler that does, or use [ByUser]; otherwise each
// guessed token has a limit of its own.
func ByToken(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) string {
		secret := only(r, name)
		if secret == "" {
			return ""
		}
		sum := sha256.Sum256([]byte(secret))
		var b [len("token:") + 22]byte
		copy(b[:], "token:")
		base64.RawURLEncoding.Encode(b[len("token:"):], sum[:16]) // 128 bits do not collide
		return string(b[:])
	}
}

// ByUser uses the user of a request, such as "user:alice". The function user returns the
// user that the request was authenticated as, for example from its context, or "".
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

// only returns the value of a header, or "" if it was not sent once.
func only(r *http.Request, name string) string {
	value, _ := subject.Only(r.Header[name])
	return value
}
