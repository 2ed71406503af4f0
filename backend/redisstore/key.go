package redisstore

import (
	"fmt"
	"net/url"
	"strings"
)

// tagOf returns prefix{key}, with which all keys of a limit begin. Neither prefix nor the escaped key has braces, so
// they lie in one slot of a Redis Cluster, and no two keys of a limiter have a Redis key in common.
func tagOf(prefix, key string) string { return prefix + "{" + escape(key) + "}" }

// What follows the key and the counter in the names of the count, the end and the ledger. A rolling limit has only the first.
var kinds = [...]string{"", ":exp", ":own"}

// keysOf returns the keys of a counter: prefix{key}:60s, prefix{key}:60s:exp and prefix{key}:60s:own.
func keysOf(prefix, key, counter string) (all [len(kinds)]string) {
	for i, kind := range kinds {
		all[i] = string(appendKey(nil, prefix, escape(key), counter, kind))
	}
	return all
}

func appendKey(text []byte, prefix, escaped, counter, kind string) []byte {
	text = append(append(append(text, prefix...), '{'), escaped...)
	return append(append(append(text, "}:"...), counter...), kind...)
}

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
