package reservoir

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// A key may lie in a buffer that the caller uses again: the limiter has its own.
func TestKeyIsTheCallersBuffer(t *testing.T) {
	buffer := []byte("user-1")
	key := unsafe.String(&buffer[0], len(buffer))
	l := open(t, memstore.New(), PerHour(100), WithBatch(Fixed(10)))
	require.Equal(t, Fetched, allow(t, l, key, 1).Source)
	buffer[5] = '2'
	require.Equal(t, Fetched, allow(t, l, key, 1).Source)
	assert.Equal(t, Local, allow(t, l, "user-1", 1).Source)
	assert.Equal(t, Local, allow(t, l, "user-2", 1).Source)
}

// Who drops an entry late does not drop the one that has come after it.
func TestTableDropsNoSuccessor(t *testing.T) {
	table := newTable(10)
	old := table.getOrMake("a", bareEntry)
	table.drop(old)
	successor := table.getOrMake("a", bareEntry)
	require.NotSame(t, old, successor)
	table.drop(old)
	assert.Same(t, successor, table.get("a"))
	assert.EqualValues(t, 1, table.size.Load())
}
