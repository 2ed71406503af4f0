package keytable

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newTable(most int64) *Table[string] {
	t := new(Table[string])
	t.Init(most)
	return t
}

func put(t *Table[string], key string) *Node[string] {
	return t.GetOrMake(key, func(n *Node[string]) *Node[string] { n.State = "of " + n.Key; return n })
}

// A key with another's hash is another key.
func TestEqualHashes(t *testing.T) {
	table := newTable(math.MaxInt64)
	made := put(table, "a")
	table.Delete(made) // the chains stay
	h := made.Hash
	of(*table.shards[h%shards].chains.Load(), h).Store(&Node[string]{Key: "b", Hash: h})
	assert.Nil(t, table.Get("a"))
	assert.Nil(t, table.Find("a"))
	assert.Equal(t, "of a", put(table, "a").State)
}

// A key leads to one node, whoever made it, through growth and deletions by others; a
// look-up without the lock may miss, but finds no other key's.
func TestUnderGrowth(t *testing.T) {
	const goroutines, keys = 4, 2_000
	table := newTable(math.MaxInt64)
	var made [goroutines][keys]*Node[string]
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range keys {
				key := fmt.Sprint(i)
				made[g][i] = put(table, key)
				if n := table.Get(key); n != nil && n != made[g][i] {
					t.Error("another node of ", key)
				}
				if table.Find(key) != made[g][i] {
					t.Error("Find misses ", key)
				}
				mine := fmt.Sprintf("%d of %d", i, g)
				table.Delete(put(table, mine))
				if table.Find(mine) != nil {
					t.Error(mine, " was deleted")
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	table.All(func(n *Node[string]) bool { seen[n.Key] = true; return true })
	assert.Len(t, seen, keys)
	assert.EqualValues(t, keys, table.Len())
	for i := range keys {
		for g := range goroutines {
			require.Same(t, table.Get(fmt.Sprint(i)), made[g][i])
		}
	}
}

// Deleting a node leaves the others of its chain, and a node that its key no longer
// leads to is not deleted twice.
func TestDelete(t *testing.T) {
	const keys = 2_000 // many to a chain, some of them
	table := newTable(math.MaxInt64)
	for i := range keys {
		put(table, fmt.Sprint(i))
	}
	for i := range keys / 2 {
		n := table.Get(fmt.Sprint(2 * i))
		table.Delete(n)
		table.Delete(n)
		again := put(table, n.Key)
		table.Delete(n)
		require.Same(t, again, table.Get(n.Key), "the key has another node by now")
		table.Delete(again)
	}
	assert.EqualValues(t, keys/2, table.Len())
	for i := range keys {
		assert.Equal(t, i%2 == 1, table.Get(fmt.Sprint(i)) != nil, i)
	}
	other := newTable(1)
	other.Delete(put(table, "elsewhere"))
	assert.Zero(t, other.Len())
}

func TestBound(t *testing.T) {
	table := newTable(2)
	a := put(table, "a")
	require.NotNil(t, put(table, "b"))
	assert.Nil(t, put(table, "c"))
	assert.EqualValues(t, 2, table.Len())
	assert.Same(t, a, put(table, "a"), "a held key is not refused")
	table.Delete(a)
	assert.NotNil(t, put(table, "c"))
}

// TestNode: a key's bytes may be the caller's buffer, and its state is set before
// anybody finds it.
func TestNode(t *testing.T) {
	table := newTable(9)
	buffer := []byte("abc")
	n := table.GetOrMake(string(buffer[:2]), func(n *Node[string]) *Node[string] {
		assert.NotZero(t, n.Hash)
		assert.Nil(t, table.Get("ab"))
		n.State = "set"
		return n
	})
	assert.Equal(t, []string{"ab", "set"}, []string{n.Key, n.State})
	table.Delete(n)
	assert.Same(t, n, table.GetOrMake("ab", func(*Node[string]) *Node[string] { return n }), "it comes back")
	assert.Same(t, n, table.Get("ab"))
	assert.EqualValues(t, 1, table.Len())
	assert.Nil(t, table.Find("abc"))
	assert.Nil(t, table.Get("x"))
}

// TestAllEnds when it is told so, and may delete what it visits.
func TestAllEnds(t *testing.T) {
	table := newTable(100)
	for i := range 100 {
		put(table, fmt.Sprint(i))
	}
	visits := 0
	table.All(func(n *Node[string]) bool {
		visits++
		table.Delete(n)
		return visits < 30
	})
	assert.Equal(t, 30, visits)
	assert.EqualValues(t, 70, table.Len())
}
