package redisstore

import (
	"strings"
	"unicode/utf8"
)

// Suffixes of the three keys of a limit, after its hash tag.
const (
	expSuffix = ":exp"
	ownSuffix = ":own"
)

// keysOf returns the three keys of a limit: the count's, prefix{key}, the end's and
// the ledger's. Neither prefix nor the escaped key has braces, so the three lie in one
// slot of a Redis Cluster, and no two limits have a Redis key in common. The three
// strings share one allocation, because every call makes them.
func keysOf(prefix, key string) [3]string {
	var b strings.Builder
	b.Grow(2 * (len(prefix) + len(key) + 2 + len(expSuffix)))
	b.WriteString(prefix)
	b.WriteByte('{')
	escape(&b, key)
	b.WriteByte('}')
	tag := b.String() // the builder only appends, so these bytes stay
	b.WriteString(expSuffix)
	b.WriteString(tag)
	b.WriteString(ownSuffix)
	all, end := b.String(), len(tag)+len(expSuffix)
	return [3]string{all[:len(tag)], all[:end], all[end:]}
}

// escape writes key with %XX for each byte that could break a hash tag, a line or a text
// protocol. It also escapes the percent sign, so that different keys stay different.
// Ordinary keys stay as they are, so that other programs can write them easily.
func escape(b *strings.Builder, key string) {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(key); {
		r, size := utf8.DecodeRuneInString(key[i:])
		bad := r <= ' ' || r == '{' || r == '}' || r == '%' || 0x7f <= r && r <= 0x9f || r == '\u2028' || r == '\u2029' ||
			r == utf8.RuneError && size == 1 // a byte that is no UTF-8
		for end := i + size; i < end; i++ {
			if c := key[i]; bad {
				b.Write([]byte{'%', hex[c>>4], hex[c&15]})
			} else {
				b.WriteByte(c)
			}
		}
	}
}
