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

	// maxValue is the largest size of an item. It is a little less than the 1 MiB that
	// memcached allows by default for key, header and value.
	maxValue = 1_000_000
)

// name returns memcached's key for a limit's key: prefix/key. It escapes bytes that could
// break a line, so that no two keys get the same name. A key that becomes too long is
// named by its SHA-256, as prefix/#hex; no escaped key begins with #.
func (s *Store) name(key string) string {
	plain := s.prefix + "/" + url.PathEscape(key)
	if len(plain) <= maxKey {
		return plain
	}
	sum := sha256.Sum256([]byte(key))
	return s.prefix + "/#" + hex.EncodeToString(sum[:])
}

// memcached reads an expiration of up to 30 days as relative to its clock, and a longer
// one as a Unix time: 31 days would be in January 1970, and the item would expire at once.
const relative = 30 * 24 * time.Hour

// grace is how long an item outlives its window. The stored end closes the window, not
// the expiration, because memcached counts in whole seconds and the clocks of processes
// differ. An absolute expiration gets farGrace, because the server's clock may differ too.
const (
	grace     = 5 * time.Second
	farGrace  = time.Hour
	noExpires = 0
)

// expiration returns the expiration of an item whose window has so much time left.
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
