package account

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

var rolls = backend.Limit{Tokens: 100, Window: time.Minute}.Rolling()

// slice is the window that ends at a second.
func slice(end int64) backend.Window { return backend.Window{End: end * 1000} }

// states is what a says about the window, with a limit of 100.
func states(a *Rolling, w int64) backend.SyncRequest {
	q := backend.SyncRequest{Limit: rolls}
	a.State(&q, slice(w), 0)
	return q
}

// leased is an account that was granted 10 tokens in window 1.
func leased(t *testing.T) *Rolling {
	a := new(Rolling)
	m := a.Apply(states(a, 0), backend.SyncReply{State: backend.State{Window: slice(1), Remaining: 60}, Grant: 10, Granted: 10, Total: 50}, 0)
	require.Equal(t, Moved{Taken: 10}, m)
	return a
}

// TestRollingStatement: what an account says. What was charged to all is said only with the
// total that belongs to it.
func TestRollingStatement(t *testing.T) {
	a := leased(t)
	assert.Equal(t, backend.SyncRequest{Limit: rolls, Window: slice(1), Granted: 10, Total: 50, Used: 40}, states(a, 1))
	a.Return(4)
	a.Declare(3)
	assert.Equal(t, backend.SyncRequest{Limit: rolls, Window: slice(1), Granted: 10, Returned: 4, Debt: 3, Total: 50, Used: 36}, states(a, 1), "the first to return them")
	assert.EqualValues(t, 40, states(a, 1).Used, "others may have them by now")
	a.total = 0
	assert.Zero(t, states(a, 1).Used)
	a.total = 1
	assert.EqualValues(t, 40, states(a, 1).Used)
}

// TestRollingApplySameWindow: the reply confirms what the statement said, and not what was
// returned and declared after it.
func TestRollingApplySameWindow(t *testing.T) {
	a := leased(t)
	a.Return(4)
	a.Declare(3)
	q := states(a, 1)
	a.Return(2)
	a.Declare(5)
	r := backend.SyncReply{State: backend.State{Window: slice(1), Remaining: 120}, Grant: 7, Granted: 17, Returned: 4, Debt: 3}
	assert.Equal(t, Moved{Taken: 7 + 3, Returned: 4}, a.Apply(q, r, 0))
	assert.EqualValues(t, 2, a.Unconfirmed())
	assert.EqualValues(t, 5, a.Unpaid())
	next := states(a, 1)
	assert.Equal(t, []int64{17, 6, 8, 0}, []int64{next.Granted, next.Returned, next.Debt, next.Used})
	assert.Equal(t, Moved{Taken: 5, Returned: 2}, a.Apply(next, backend.SyncReply{
		State: backend.State{Window: slice(1)}, Granted: 17, Returned: 6, Debt: 8,
	}, 0))
	assert.Equal(t, Moved{}, a.Apply(next, backend.SyncReply{
		State: backend.State{Window: slice(1)}, Granted: 17, Returned: 6, Debt: 8,
	}, 0), "nothing is told twice")
	assert.Equal(t, Moved{}, a.Apply(next, backend.SyncReply{
		State: backend.State{Window: slice(1)}, Granted: 17, Returned: 6, Debt: 7,
	}, 0), "nor taken back")
}

// TestRollingApplyDebt: a store that has charged less debt than was stated is told again, and
// of one that has charged more, in an earlier stay in the window, that is added.
func TestRollingApplyDebt(t *testing.T) {
	a := leased(t)
	a.Declare(5)
	r := backend.SyncReply{State: backend.State{Window: slice(1)}, Granted: 10, Debt: 3}
	assert.Equal(t, Moved{Taken: 3}, a.Apply(states(a, 1), r, 0))
	assert.EqualValues(t, 2, a.Unpaid())
	r.Debt = 9
	assert.Equal(t, Moved{Taken: 2}, a.Apply(states(a, 1), r, 0))
	assert.Equal(t, openTotals{debt: 9, stated: 9, paid: 9}, *a.open)
	a.Declare(1)
	assert.EqualValues(t, 10, states(a, 1).Debt)

	a = leased(t)
	assert.Equal(t, Moved{}, a.Apply(states(a, 1), r, 0))
	assert.Equal(t, openTotals{debt: 9, stated: 9, paid: 9}, *a.open)
}

// TestOtherAccount: the store has another account, or has carried what is left into another slice.
func TestOtherAccount(t *testing.T) {
	for _, row := range []struct {
		name                 string
		account              int64 // the statement was of 0
		debt                 int64 // that the store knows of then
		moved                Moved
		unconfirmed, unpaid  int64
		spent, inUse, ledger int64
	}{
		// 10 granted, 4 returned and 2 more after the statement; 1 held, 3 spent;
		// a debt of 3 and 5 more after the statement; then a grant of 7.
		{"another account", 7, 0, Moved{Taken: 7, Expired: 1 + 6, Overdrawn: 8}, 0, 0, 3, 0, 7},
		{"another account, with debt of before", 7, 9, Moved{Taken: 7, Expired: 1 + 6, Overdrawn: 8}, 0, 0, 3, 0, 7},
		{"carried", 0, 3, Moved{Taken: 7 + 3, Returned: 4}, 2, 5, 6, 6, 16},
		{"carried to debt of before", 0, 9, Moved{Taken: 7 + 3, Returned: 4}, 2, 5, 6, 6, 16},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := leased(t)
			a.Return(4)
			a.Declare(3)
			q := states(a, 1)
			a.Return(2)
			a.Declare(5)
			require.EqualValues(t, 3, a.Spent(1))
			m := a.Apply(q, backend.SyncReply{
				State: backend.State{Window: slice(2)}, Account: row.account, Grant: 7, Granted: row.ledger, Debt: row.debt,
			}, 1)
			assert.Equal(t, row.moved, m)
			held := int64(7)
			if row.account == 0 {
				held++
			}
			assert.Equal(t, row.unconfirmed, a.Unconfirmed())
			assert.Equal(t, row.unpaid, a.Unpaid())
			assert.Equal(t, row.spent, a.Spent(held))
			assert.Equal(t, row.inUse, a.InUse(held))
			q = states(a, 2)
			assert.Equal(t, row.debt+row.unpaid, q.Debt)
			assert.Equal(t, row.unconfirmed, q.Returned)
		})
	}
}

// TestRollingIdleAccountIsSmall: what only some accounts need is dropped when nothing is
// left of it.
func TestRollingIdleAccountIsSmall(t *testing.T) {
	a := leased(t)
	assert.Nil(t, a.open)
	a.Return(4)
	q := states(a, 1)
	a.Apply(q, backend.SyncReply{State: backend.State{Window: slice(1)}, Granted: 10, Returned: 4}, 0)
	assert.Nil(t, a.open)
}

// TestRollingCancelDebt: only what no statement has told the store of.
func TestRollingCancelDebt(t *testing.T) {
	a := leased(t)
	assert.Zero(t, a.CancelDebt(1))
	a.Declare(3)
	assert.EqualValues(t, 1, a.CancelDebt(1))
	states(a, 1)
	assert.Zero(t, a.CancelDebt(1))
	a.Declare(4)
	assert.EqualValues(t, 4, a.CancelDebt(9))
	assert.EqualValues(t, 2, a.Unpaid())
	a.Declare(backend.MaxTokens)
	assert.EqualValues(t, backend.MaxTokens, a.Unpaid(), "debt has a largest number")
}

// TestRollingDirect: what direct calls charge is spent, and not of the stock.
func TestRollingDirect(t *testing.T) {
	a := leased(t)
	assert.Equal(t, Moved{Taken: 5}, a.Direct(5))
	assert.EqualValues(t, 5+3, a.Spent(7))
	assert.EqualValues(t, 3, a.InUse(7), "of the stock")
}

// TestRollingUsed: what requests have used in the window, in debt too.
func TestRollingUsed(t *testing.T) {
	a := leased(t)
	assert.EqualValues(t, 3, a.Used(7))
	a.Declare(6)
	a.Return(2)
	assert.EqualValues(t, 3+6, a.Used(5))
}

// TestRollingLeave: what is held and what is not confirmed expires with the window, and the
// rest of the account is forgotten.
func TestRollingLeave(t *testing.T) {
	a := leased(t)
	a.Return(4)
	a.Declare(3)
	assert.Equal(t, Moved{Expired: 2 + 4, Overdrawn: 3}, a.Leave(2), "the debt was used, and nobody heard of it")
	assert.Equal(t, Rolling{balance: 4}, *a)
	assert.EqualValues(t, 4, a.Balance())

	a = leased(t)
	assert.Equal(t, Moved{Expired: 4}, a.Leave(4))
	assert.Equal(t, Moved{Expired: 2}, a.Expire(2))
	a.Refund(1)
	assert.EqualValues(t, 5, a.Balance())
	assert.False(t, a.Granted())
	assert.Zero(t, a.InUse(1), "refunded into a window that is over")
	assert.True(t, leased(t).Granted())
}

// TestRollingExpire: tokens that expired were used neither in their window, nor in one that the
// account is carried over to.
func TestRollingExpire(t *testing.T) {
	for _, expired := range []int64{0, 3} {
		a := leased(t)
		assert.Equal(t, Moved{Expired: expired}, a.Expire(expired))
		assert.Equal(t, expired > 0, a.open != nil)
		a.Return(2)
		q := states(a, 1)
		a.Return(1)
		assert.Equal(t, 7-expired, a.InUse(0))
		assert.Equal(t, 7-expired, a.Used(0))
		a.Apply(q, backend.SyncReply{State: backend.State{Window: slice(2)}, Granted: 8}, 0)
		assert.EqualValues(t, 1, a.Unconfirmed())
		assert.Equal(t, 7-expired, a.InUse(0))
	}
}

// TestRollingOutstanding: what was returned, and debt, until the store has confirmed it.
func TestRollingOutstanding(t *testing.T) {
	a := leased(t)
	assert.False(t, a.Outstanding())
	a.Return(1)
	assert.True(t, a.Outstanding())
	b := leased(t)
	b.Declare(1)
	assert.True(t, b.Outstanding())
	b.CancelDebt(1)
	assert.False(t, b.Outstanding())
}

// TestRollingOverdrawn: of debt that is charged, what was above the limit then, and no grant.
func TestRollingOverdrawn(t *testing.T) {
	for _, row := range []struct{ over, want int64 }{{0, 0}, {2, 2}, {5, 5}, {9, 5}} {
		a, q := leased(t), backend.SyncRequest{}
		a.Declare(5)
		a.State(&q, slice(1), 0)
		reply := backend.SyncReply{State: backend.State{Window: slice(1)}, Granted: q.Granted, Returned: q.Returned, Debt: 5, Over: row.over}
		assert.Equal(t, Moved{Taken: 5, Overdrawn: row.want}, a.Apply(q, reply, 0))
		assert.Zero(t, a.Apply(q, reply, 0).Overdrawn, "it is charged once")
	}
}

// TestRollingExpireDebt: debt counts as overdrawn once, and statements still carry it.
func TestRollingExpireDebt(t *testing.T) {
	assert.Zero(t, new(Rolling).ExpireDebt())
	a := leased(t)
	a.Declare(5)
	assert.Equal(t, Moved{Overdrawn: 5}, a.ExpireDebt())
	assert.Zero(t, a.ExpireDebt())
	assert.Zero(t, a.Unpaid())
	q := states(a, 1)
	assert.EqualValues(t, 5, q.Debt)
	assert.Zero(t, a.Apply(q, backend.SyncReply{State: backend.State{Window: slice(2)}, Account: 7}, 0))
}
