package sharding_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/sharding"
)

// TestSickShardKeepsItsKeys: no key of a shard that fails is served by another,
// where it would find a second limit.
func TestSickShardKeepsItsKeys(t *testing.T) {
	well := memstore.New()
	sick := broken{&backend.Error{Op: "op", Class: backend.Unavailable, Err: errors.New("cause")}}
	s, err := sharding.New(map[string]backend.Store{"sick": sick, "well": well})
	require.NoError(t, err)
	kept := 0
	for i := range 100 {
		key := fmt.Sprint(i)
		if s.Shard(key) != "sick" {
			continue
		}
		kept++
		for op, err := range calls(t.Context(), s, key) {
			require.Error(t, err, op)
		}
		there, err := well.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Empty(t, there)
	}
	require.Positive(t, kept)
}
