package memcachestore

import (
	"testing"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
)

// TestSuite: while memcached keeps its data nothing of the contract is missing.
func TestSuite(t *testing.T) {
	addr := start(t).Addr()
	for name, opts := range map[string][]Option{"plain": nil, "prefix": {WithPrefix("rl")}} {
		t.Run(name, func(t *testing.T) {
			s := New(dial(t, addr), opts...)
			backendtest.Run(t, func(*testing.T) backend.Store { return s })
		})
	}
}
