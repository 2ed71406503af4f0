package redisstore

import (
	"fmt"
	"net/url"
	"strings"
)

// tagOf returns prefix{key}, with which all keys of a limit begin. Neither prefix nor the escaped key has braces, so
// they lie in one slot of a Redis Cluster, and no two keys of a limiter have a Redis key in common.
func tagOf(prefix, key string) string { return prefix + "{" + escape(key) + "}" }

// keysOf returns the keys of a counter: the count's, prefix{key}:60s, the end's and the ledger's. A rolling limit
// has only the first.
func keysOf(prefix, key, counter string) [3]string {
	var b strings.Builder // one allocation, because every call makes them
	escaped := escape(key)
	n := len(prefix) + len(escaped) + len(counter) + len("{}:")
	b.Grow(2*n + len(endKey+ledgerKey))
	for _, more := range [...]string{endKey, ledgerKey} {
		for _, part := range [...]string{prefix, "{", escaped, "}:", counter, more} {
			b.WriteString(part)
		}
	}
	all := b.String()
	return [3]string{all[:n], all[:n+len(endKey)], all[n+len(endKey):]}
}

// What follows the name of the count.
const (
	endKey    = ":exp"
	ledgerKey = ":own"
)

// split returns what keysOf has put together to the first key, with prefix.
func split(name, prefix string) (key, counter string, ok bool) {
	name, ok = strings.CutPrefix(name, prefix+"{")
	name, counter, closed := strings.Cut(name, "}")
	key, err := url.PathUnescape(name) // of %XX: see escape
	return key, strings.TrimPrefix(counter, ":"), ok && closed && err == nil
}

// escape writes key with %XX for each byte that could break a hash tag or a line. It also
// escapes the percent sign, so that different keys stay different. Ordinary keys stay as
// they are, so that other programs can write them easily.
func escape(key string) string {
	if strings.IndexFunc(key, breaks) < 0 {
		return key
	}
	var b strings.Builder
	for i := range len(key) {
		if c := key[i]; breaks(rune(c)) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// breaks reports whether a character could break a hash tag or a line; all such are ASCII.
func breaks(c rune) bool { return c <= ' ' || c == 0x7f || c == '{' || c == '}' || c == '%' }
