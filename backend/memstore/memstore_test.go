package memstore_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSuite(t *testing.T) {
	backendtest.Run(t, func(*testing.T) backend.Store { return memstore.New() })
}
