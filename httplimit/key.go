package httplimit

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
)

// KeyFunc returns the key of the limiter that a request is charged to, or "" if
// it has none. It must be quick and safe for concurrent use. What it makes of text
// that clients choose must not be equal to a key of another kind: begin it with
// a word of its own.
type KeyFunc func(*http.Request) string

// ByHeader is the value of a header, as "header:X-Tenant:acme". Use it for
// headers that a client cannot choose freely, as those a gateway sets: with a new
// value comes a new limit. A header that is there twice is none.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	prefix := "header:" + name + ":"
	return func(r *http.Request) string { return with(prefix, only(r.Header[name])) }
}

// ByToken is a header that proves who the client is, such as Authorization or
// an API key, as "token:" and a hash of it, so that no secret gets into the
// store. It does not know good tokens from bad ones: put it behind what does, or
// use ByUser, or each guess has a limit of its own.
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

// ByUser is the user that a request was authenticated as, "" for nobody, as
// "user:alice". The function finds that in the request's context, say.
func ByUser(user func(*http.Request) string) KeyFunc {
	return func(r *http.Request) string { return with("user:", user(r)) }
}

// First is the first key of several that a request has.
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

// only is the value of a header that was sent once. Of two, one may be the
// client's and one the gateway's, and nobody can tell which.
func only(values []string) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}
