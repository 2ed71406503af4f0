package redisstore

import (
	"fmt"
	"strings"
)

// keysOf returns the three keys of a limit: the count's, prefix{key}, the end's and
// the ledger's. Neither prefix nor the escaped key has braces, so the three lie in one
// slot of a Redis Cluster, and no two limits have a Redis key in common.
func keysOf(prefix, key string) [3]string {
	tag := prefix + "{" + escape(key) + "}"
	all, n := tag+":exp"+tag+":own", len(tag) // one allocation, because every call makes them
	return [3]string{all[:n], all[:n+len(":exp")], all[n+len(":exp"):]}
}

// ringOf returns the keys of a rolling limit: its ring, and the count of a plain one. They lie in the
// slot of keysOf.
func ringOf(prefix, key string) [3]string {
	tag := prefix + "{" + escape(key) + "}"
	ring := tag + ":roll"
	return [3]string{ring, ring[:len(tag)]}
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
