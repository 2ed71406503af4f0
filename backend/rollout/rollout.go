package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// Store implements [backend.Store] over an old and a new store, and [backend.Inspector]
// if they do. Make it with [New]. It is safe for concurrent use, and does not close its
// stores. The package documentation describes it.
type Store struct {
	old, new backend.Store
	setting  sync.Mutex // held while span is replaced
	span     atomic.Pointer[span]
	longest  atomic.Int64 // a time.Duration: the longest that any requested window may run
	aligned  cache
}

var (
	_ backend.Store     = (*Store)(nil)
	_ backend.Inspector = (*Store)(nil)
)

// New returns a store over old and new with the range of keys of [Store.SetPercent], which
// it assumes was always in force.
//
// New does no I/O. It refuses a range that SetPercent refuses, a nil store, and a store
// whose method Err, if it has one, returns an error.
func New(old, new backend.Store, low, high float64) (*Store, error) {
	for _, store := range []backend.Store{old, new} {
		if store == nil {
			return nil, errors.New("reservoir: rollout: no store")
		}
		if set, ok := store.(interface{ Err() error }); ok && set.Err() != nil {
			return nil, fmt.Errorf("reservoir: rollout: %w", set.Err())
		}
	}
	s := &Store{old: old, new: new}
	return s, s.SetPercent(low, high)
}

// SetPercent makes s count keys below low percent in the new store, keys from high
// percent on in the old one, and keys between in both. If low equals high, every key has
// one store.
//
// A key goes into both stores at once, and leaves its former store only after a window's
// length. Setting the present range again does nothing. Unless 0 <= low <= high <= 100,
// SetPercent returns an error and changes nothing.
func (s *Store) SetPercent(low, high float64) error {
	if !(0 <= low && low <= high && high <= 100) { // false for NaN, too
		return fmt.Errorf("reservoir: rollout: keys from %v to %v percent, want 0 <= low <= high <= 100", low, high)
	}
	s.setting.Lock()
	defer s.setting.Unlock()
	before := s.span.Load()
	if before == nil || before.low != low || before.high != high {
		s.span.Store(&span{low: low, high: high, since: time.Now(), before: before})
	}
	return nil
}

// Percent returns the range that is in force.
func (s *Store) Percent() (low, high float64) {
	now := s.span.Load()
	return now.low, now.high
}

// Shard names the store of the key, "old", "new" or "both", so that a limiter can judge
// their failures separately. If the store names a shard of its own for the key, Shard
// returns "old/shard" or "new/shard". For a key in both it returns "both/shard+shard",
// the old store's name first; a store without shards has an empty name there. In the old
// store's name "+" becomes "%2B" and "%" becomes "%25", so that no two pairs of shards
// share a name.
//
// Shard is not given the key's window. So a key that leaves a store is in "both" until the
// longest window requested of s has passed, even if its own window is shorter.
//
// A name that has a "/" costs an allocation, besides the allocations of the stores.
func (s *Store) Shard(key string) string {
	name, part := "both", ""
	switch s.span.Load().now(place(key), time.Duration(s.longest.Load())) {
	case inOld:
		name, part = "old", placement.Shard(s.old, key)
	case inNew:
		name, part = "new", placement.Shard(s.new, key)
	default:
		if old, new := placement.Shard(s.old, key), placement.Shard(s.new, key); old != "" || new != "" {
			part = unplussed.Replace(old) + "+" + new
		}
	}
	if part == "" {
		return name
	}
	return name + "/" + part
}

var unplussed = strings.NewReplacer("%", "%25", "+", "%2B")

// Sync implements backend.Store.
func (s *Store) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return s.at(r.Key, s.lasts(r.Limit)).Sync(ctx, r)
}

// Take implements backend.Store.
func (s *Store) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return s.at(r.Key, s.lasts(r.Limit)).Take(ctx, r)
}

// Check implements backend.Store. For a key in both stores it returns the state of the
// store that has fewer tokens left, or of one whose window has another length.
func (s *Store) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	return s.at(key, s.lasts(l)).Check(ctx, key, l)
}

// Refund implements backend.Store. For a key in both stores it returns the smaller of
// their totals, and may be repeated if its outcome is unknown. A request has no length of
// its window, only the end. So for as long as the window has left, a key that leaves a
// store counts as in both; after that, its tokens stay charged in the store that it leaves.
func (s *Store) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	left := max(time.Until(r.Window.Time()), 0)
	return s.at(r.Key, left+slack(left)).Refund(ctx, r)
}

// Reset implements backend.Store. A key in both stores gets the same fresh window in
// both, or an error. After an error, one store may have a fresh window while the other
// store's old window limits the key until Reset is called again.
func (s *Store) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	return s.at(r.Key, s.lasts(r.Limit)).Reset(ctx, r)
}

// Inspect implements backend.Inspector. For a key in both stores it asks the old one
// or, while the key leaves a store, the other one. It returns an error if that store is
// no Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (backend.Contents, error) {
	store := s.old
	if s.span.Load().of(place(key)) == inNew {
		store = s.new
	}
	if inspector, ok := store.(backend.Inspector); ok {
		return inspector.Inspect(ctx, key)
	}
	none := errors.New("the store is no backend.Inspector")
	return backend.Contents{}, &backend.Error{Op: "inspect", Class: backend.Rejected, Err: none}
}
