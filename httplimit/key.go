package httplimit

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
)

// KeyFunc returns the key of the limiter that a request is charged to, or "" if
// it has none. It must be quick and safe for concurrent use. If clients can choose a part
// of the key, begin the key with a word of its own, so that it never equals a key of
// another kind.
type KeyFunc func(*http.Request) string

// ByHeader uses the value of a header, such as "header:X-Tenant:acme". Use it for headers
// that a client cannot choose freely, such as a gateway's, because each value has a limit
// of its own. If the header occurs twice, the request has no key. Host is in lower case, and
// has the port if the client has sent it.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	prefix := "header:" + name + ":"
	if name == "Host" { // net/http has moved it out of the headers
		return func(r *http.Request) string { return with(prefix, strings.ToLower(cmp.Or(r.Host, r.URL.Host))) }
	}
	return func(r *http.Request) string { return with(prefix, only(r.Header[name])) }
}

// ByToken uses "token:" and a hash of a header that proves the client's identity, such as
// Authorization or an API key. The hash keeps secrets out of the store. ByToken does not
// verify tokens, so put it behind a handler that does, or use [ByUser]; otherwise each
// guessed token has a limit of its own.
func ByToken(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) string {
		secret := only(r.Header[name])
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
	return func(r *http.Request) string { return with("user:", user(r)) }
}

// First uses the first of keys that returns a key for the request.
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

func with(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// only returns the value of a header that was sent once. If it was sent twice, one value
// may be the client's and the other the gateway's, and they look the same.
func only(values []string) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}
