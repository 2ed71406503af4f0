package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/backendtest"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/backend/rollout"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// limit10 is 10 tokens a minute.
var limit10 = backend.Limit{Tokens: 10, Window: time.Minute}

func open(t testing.TB, old, new backend.Store, low, high float64) *rollout.Store {
	t.Helper()
	s, err := rollout.New(old, new, low, high)
	require.NoError(t, err)
	return s
}

// Where every key has one store, a roll-out is a store like others.
func TestSuite(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	for _, percent := range []float64{0, 50, 100} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			backendtest.Run(t, func(t *testing.T) backend.Store {
				return open(t, memstore.New(), memstore.New(), percent, percent)
			})
		})
	}
	t.Run("redis", func(t *testing.T) {
		s := open(t, redisstore.New(a.Client()), redisstore.New(b.Client()), 50, 50)
		backendtest.Run(t, func(*testing.T) backend.Store { return s })
	})
}
