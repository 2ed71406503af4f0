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
	return [3]string{tag, tag + ":exp", tag + ":own"}
}

// escape writes key with %XX for each byte that could break a hash tag or a line. It also
// escapes the percent sign, so that different keys stay different. Ordinary keys stay as
// they are, so that other programs can write them easily.
func escape(key string) string {
	var b strings.Builder
	b.Grow(len(key))
	for i := range len(key) {
		switch c := key[i]; {
		case c <= ' ', c == 0x7f, c == '{', c == '}', c == '%':
			fmt.Fprintf(&b, "%%%02X", c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
