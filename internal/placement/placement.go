// Package placement decides where a key is stored, and names that place.
package placement

// Hash is FNV-1a, 64 bit. It is written out because hash/fnv takes bytes, and
// because it must never change: see the tests of sharding and rollout.
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

// Within names the part of a named store that holds key: "store/part", or the store's
// name if it has no parts. The result is unique if no store's name has a slash.
func Within(name string, store any, key string) string {
	if part := Shard(store, key); part != "" {
		return name + "/" + part
	}
	return name
}
