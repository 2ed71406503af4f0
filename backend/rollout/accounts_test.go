package rollout_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/rollout"
)

// book is one client of a key in both stores, which keeps its account as a limiter
// does and knows only of replies that it got.
type book struct {
	backend.SyncRequest
	refunded int64
	direct   int64 // what its takes were charged
	lost     bool  // there was no reply to its last statement, which may have granted something
}

// sync makes the statement. It reports whether a reply came.
func (b *book) sync(t *testing.T, s *rollout.Store) bool {
	reply, err := s.Sync(t.Context(), b.SyncRequest)
	if err != nil {
		b.lost = true
		return false
	}
	require.Zero(t, reply.Length)
	require.GreaterOrEqual(t, reply.Returned, b.Returned)
	require.GreaterOrEqual(t, reply.Granted, b.Granted)
	require.Equal(t, reply.Granted-b.Granted, reply.Grant, "what the client is handed")
	require.Equal(t, b.Debt, reply.Debt)
	require.True(t, reply.Grant == 0 || reply.Grant >= b.Least || b.lost, "all or none: %+v %+v", b, reply)
	b.Window, b.Granted, b.Returned, b.Total = reply.Window, reply.Granted, reply.Returned, reply.Total
	b.lost = false
	return true
}

func (b *book) refund(t *testing.T, s *rollout.Store) bool {
	known, err := s.Refund(t.Context(), backend.RefundRequest{Key: "k", Client: b.Client, Window: b.Window, Total: b.refunded})
	if err != nil {
		return false
	}
	require.Equal(t, b.refunded, known)
	return true
}

// step is a random event of a client's.
func (b *book) step(t *testing.T, r *rand.Rand, s *rollout.Store) {
	b.Want = r.Int64N(50)
	b.Need = r.Int64N(b.Want + 1)
	b.Least = r.Int64N(b.Need + 1)
	b.Leaving = r.IntN(5) == 0
	switch r.IntN(5) {
	case 0:
		b.Returned += r.Int64N(max(b.Granted-b.Returned, b.Debt/10) + 1) // a little debt is returned too, charged or not
		b.Returned = min(b.Returned, b.Granted+b.Debt)
	case 1:
		b.Debt += r.Int64N(20)
	case 2:
		if b.refunded < b.direct {
			b.refunded += 1 + r.Int64N(b.direct-b.refunded)
			b.refund(t, s)
		}
		return
	}
	b.sync(t, s)
}

// Clients use, return, owe and refund tokens while calls to either store are lost on
// the way there or back. Both stores charge all of it once: when the network is well
// again, each has charged what the clients hold and owe, and nothing else. Only if the
// limit is too small, the old store has granted some that the new one does not have.
func TestAccountsAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		l := backend.Limit{Tokens: []int64{800, 3000}[seed%2], Window: time.Hour}
		t.Run(fmt.Sprint(seed, " of ", l.Tokens), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 0))
				old, new := newFar(0), newFar(0)
				s := open(t, old, new, 0, 100)
				var books []*book
				for i := range 5 {
					b := &book{SyncRequest: backend.SyncRequest{Key: "k", Client: fmt.Sprint("c", i), Limit: l, Strand: 40}}
					b.Want, b.Need = 1, 1
					require.True(t, b.sync(t, s))
					b.direct = r.Int64N(100) + 1
					reply, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: l, Tokens: b.direct})
					require.NoError(t, err)
					require.True(t, reply.Allowed)
					books = append(books, b)
				}
				elsewhere := int64(0) // charged by processes that count the key in the new store alone
				if seed%2 == 0 {
					elsewhere = 200
					_, err := new.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: l, Tokens: elsewhere})
					require.NoError(t, err)
				}
				time.Sleep(l.Window / 20) // the new store learns no more
				old.loses.Store(300)
				new.loses.Store(300)
				for range 300 {
					books[r.IntN(len(books))].step(t, r, s)
				}
				old.loses.Store(0)
				new.loses.Store(0)
				var charged int64
				for _, b := range books {
					b.Want, b.Need, b.Least = 0, 0, 0
					require.True(t, b.sync(t, s))
					require.True(t, b.refund(t, s) || b.refunded == 0)
					charged += b.Granted - b.Returned + b.Debt + b.direct - b.refunded
				}
				require.Equal(t, charged+elsewhere, used(t, new))
				if seed%2 == 1 {
					require.Equal(t, charged, used(t, old))
				} else {
					require.GreaterOrEqual(t, used(t, old), charged)
					require.Greater(t, used(t, new), l.Tokens*8/10, "few are left")
				}
			})
		})
	}
}

func used(t *testing.T, store *far) int64 {
	contents, err := store.Store.(backend.Inspector).Inspect(t.Context(), "k")
	require.NoError(t, err)
	return contents.Used
}
