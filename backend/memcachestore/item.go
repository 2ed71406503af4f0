package memcachestore

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"net/url"
	"time"
)

const (
	maxKey    = 250 // bytes, memcached's own bound
	maxPrefix = 100

	// maxValue is how large an item may grow: a little less than the 1 MiB that
	// memcached takes by default, key and header included.
	maxValue = 1_000_000
)

// name returns memcached's key for a limit's key: prefix/key, with what could break
// a line escaped, so that no two keys share one. A key that comes out too long is
// named by its SHA-256, prefix/#hex, which no escaped one begins like.
func (s *Store) name(key string) string {
	plain := s.prefix + "/" + url.PathEscape(key)
	if len(plain) <= maxKey {
		return plain
	}
	sum := sha256.Sum256([]byte(key))
	return s.prefix + "/#" + hex.EncodeToString(sum[:])
}

// memcached counts up to 30 days from its own now, and takes more for a Unix time:
// 31 days from now would be in January 1970, and the item gone as soon as stored.
const relative = 30 * 24 * time.Hour

// grace is how long an item outlives its window, which ends by the stored end, not by
// this: seconds tick, and the clocks of processes differ. What is an instant by our
// clock gets more, for the server's may differ from it.
const (
	grace     = 5 * time.Second
	farGrace  = time.Hour
	noExpires = 0
)

// expiration is memcached's for an item whose window has so much left.
func expiration(left time.Duration, now time.Time) int32 {
	if left+grace+time.Second <= relative {
		return int32((max(left, 0) + grace + time.Second - 1) / time.Second)
	}
	at := now.Add(left + farGrace).Unix()
	if at > math.MaxInt32 { // from 2038 on; memcached would read it as negative
		return noExpires
	}
	return int32(at)
}
