package memcachestore

import (
	"testing"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
)

// TestSuite: while memcached keeps its data nothing of the contract is missing.
func TestSuite(t *testing.T) {
	s := over(t, start(t).Addr())
	backendtest.Run(t, func(*testing.T) backend.Store { return s })
}
