package reservoir

import (
	"strings"
	"sync"
	"sync/atomic"
)

// table is the keys in memory, at most max of them.
type table struct {
	keys sync.Map // string → *entry
	size atomic.Int64
	max  int64
}

func (t *table) get(key string) *entry {
	if v, ok := t.keys.Load(key); ok {
		return v.(*entry)
	}
	return nil
}

// getOrMake returns the key's entry, makes one if there is none, or returns nil
// if there is no room. The key is copied: its bytes may be the caller's buffer.
func (t *table) getOrMake(key string, make func(key string) *entry) *entry {
	if e := t.get(key); e != nil {
		return e
	}
	if t.size.Add(1) > t.max {
		t.size.Add(-1)
		return t.get(key)
	}
	key = strings.Clone(key)
	v, held := t.keys.LoadOrStore(key, make(key))
	if held {
		t.size.Add(-1)
	}
	return v.(*entry)
}

// drop removes e, if it is still what its key leads to.
func (t *table) drop(e *entry) {
	if t.keys.CompareAndDelete(e.key, e) {
		t.size.Add(-1)
	}
}

// each calls f with every entry that is there throughout the call.
func (t *table) each(f func(e *entry)) {
	t.keys.Range(func(_, v any) bool {
		f(v.(*entry))
		return true
	})
}
