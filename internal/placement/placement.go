// Package placement decides where a key is stored, and names that place.
package placement

import "strings"

// Hash is FNV-1a, 64 bit. It is written out because hash/fnv takes bytes, and
// because it must never change: see the tests of sharding.
func Hash(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return h
}

// Mix is the finaliser of SplitMix64: every bit of x moves half of the result.
// FNV-1a alone leaves the high bits of similar keys similar. It must never change.
func Mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Shard names the part of the store that holds key, if the store has a Shard method, which
// means that its parts fail independently. Otherwise it returns "".
func Shard(store any, key string) string {
	if parts, ok := store.(interface{ Shard(key string) string }); ok {
		return parts.Shard(key)
	}
	return ""
}

// separator stands between a limit's name and the key, and is doubled within the key.
const separator = "\x1f"

// Named returns the store's key for a key of a limit with that name. Limits of different
// names, or without one, never share a key, whatever users call themselves, because a
// name has no separator.
func Named(name, key string) string {
	if strings.Contains(key, separator) {
		key = strings.ReplaceAll(key, separator, separator+separator)
	}
	if name == "" {
		return key
	}
	return name + separator + key
}

// Split reverses Named.
func Split(stored string) (name, key string) {
	if i := strings.Index(stored, separator); i > 0 {
		rest := strings.TrimLeft(stored[i:], separator)
		if separators := len(stored) - i - len(rest); separators%2 == 1 {
			name, stored = stored[:i], stored[i+1:]
		}
	}
	return name, strings.ReplaceAll(stored, separator+separator, separator)
}
