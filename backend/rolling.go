package backend

import "time"

// A store counts the tokens of a rolling limit in buckets, of which a window has [Buckets]. A token is charged in the bucket before
// whose end it is spent, or goes back to exactly that bucket. It counts until a window has passed since the bucket's end. So
// at any time all tokens that were spent in the last window are counted.
const (
	Buckets    = 20
	Ahead      = 10                  // buckets after the present one in which tokens may be charged
	MaxChanges = Buckets + 1 + Ahead // the buckets that count or may count, which is how many a statement may change
)

// Rolling is the part of a [Statement] that only rolling limits have. Its Changes are by bucket, in place of Mine, Change and
// Used, which are 0; of Window, only Gen is set. They may be in any order. Without a Client, Changes are what was used above
// earlier charges.
type Rolling struct {
	Known   int64         // Seq of the last reply that the client took; 0 = none. The store undoes what later statements did
	Changes []Change      // since that reply: tokens used without a grant, less those given back
	After   int64         // the last bucket of which the client has tokens, if these are for later ones; else 0
	Within  time.Duration // how long the reply may take. What is granted may be spent for longer, if that is at most a quarter of the window
}

// Change is a number of tokens in one bucket. A Bucket of 0 is the one in which the store hears of it.
type Change struct{ Bucket, Tokens int64 }

// Bucket returns the number of the bucket of a window of that length in which an instant of the store's clock, in Unix
// microseconds, lies.
func Bucket(at int64, window time.Duration) int64 { return at / unit(window) }

// BucketEnd returns when a bucket ends, by the store's clock in Unix microseconds: tokens that are charged in it may be spent
// before.
func BucketEnd(bucket int64, window time.Duration) int64 { return (bucket + 1) * unit(window) }

// unit is the length of a bucket in microseconds.
func unit(window time.Duration) int64 { return window.Microseconds() / Buckets }
