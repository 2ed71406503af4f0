package reservoir

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

func newTable(max int64) *table {
	t := new(table)
	t.init(max)
	return t
}

func bareEntry(key string, hash uint64) *entry { return &entry{key: key, hash: hash} }

// A key leads to one entry, whoever made it, through growth and removals by
// others; a look-up without the lock may miss, but finds no other key's.
func TestTableUnderGrowth(t *testing.T) {
	const goroutines, keys = 8, 3_000
	table := newTable(math.MaxInt64)
	var made [goroutines][keys]*entry
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range keys {
				key := fmt.Sprint(i)
				made[g][i] = table.getOrMake(key, bareEntry)
				if e := table.get(key); e != nil {
					assert.Same(t, made[g][i], e)
				}
				mine := fmt.Sprintf("%d of %d", i, g)
				table.drop(table.getOrMake(mine, bareEntry))
				assert.Nil(t, table.find(mine))
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	table.each(func(e *entry) { seen[e.key] = true })
	assert.Len(t, seen, keys)
	assert.EqualValues(t, keys, table.size.Load())
	for i := range keys {
		for g := range goroutines {
			require.Same(t, table.get(fmt.Sprint(i)), made[g][i])
		}
	}
}

// Dropping an entry leaves the others of its chain, and an entry that its key no
// longer leads to is not dropped twice.
func TestTableDrop(t *testing.T) {
	const keys = 2_000 // many to a chain, some of them
	table := newTable(math.MaxInt64)
	for i := range keys {
		table.getOrMake(fmt.Sprint(i), bareEntry)
	}
	for i := range keys / 2 {
		e := table.get(fmt.Sprint(2 * i))
		table.drop(e)
		table.drop(e)
	}
	assert.EqualValues(t, keys/2, table.size.Load())
	for i := range keys {
		assert.Equal(t, i%2 == 1, table.get(fmt.Sprint(i)) != nil, i)
	}
}

func TestTableIsBounded(t *testing.T) {
	table := newTable(2)
	a := table.getOrMake("a", bareEntry)
	require.NotNil(t, table.getOrMake("b", bareEntry))
	assert.Nil(t, table.getOrMake("c", bareEntry))
	assert.Same(t, a, table.getOrMake("a", bareEntry), "a held key is not refused")
	table.drop(a)
	assert.NotNil(t, table.getOrMake("c", bareEntry))
}

// A key that was used once and lies idle takes at most 320 bytes, all counted.
func TestMemoryOfAnIdleKey(t *testing.T) {
	const keys = 30_000
	l, err := New(instant{}, PerHour(1000), WithFetchTimeout(time.Hour))
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	key := make([]byte, 0, 20)
	for i := range keys {
		key = fmt.Appendf(key[:0], "user:%015d", i)
		_, err := l.Allow(context.Background(), string(key))
		require.NoError(t, err)
	}
	runtime.GC()
	runtime.GC() // of what finalizers and pools still held
	runtime.ReadMemStats(&after)
	each := float64(after.HeapAlloc-before.HeapAlloc) / keys
	t.Logf("%.0f bytes a key", each)
	assert.LessOrEqual(t, each, 320.0)
	assert.Equal(t, keys, l.Stats().Keys)
	require.NoError(t, l.Close(context.Background()))
}

// instant is a store that remembers nothing and grants what is needed.
type instant struct{ backend.Store }

func (instant) Sync(_ context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	g := r.Granted + r.Need
	return backend.SyncReply{
		State: backend.State{Window: 4102444800000, Left: time.Hour, Remaining: r.Limit.Tokens - g},
		Grant: r.Need, Granted: g, Returned: r.Returned, Clients: 1,
	}, nil
}
