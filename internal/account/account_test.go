package account

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

var limit = backend.Limit{Tokens: 100, Window: time.Minute}

// statement is what a says about the window, with a limit of 100.
func statement(a *Account, w backend.Window) backend.SyncRequest {
	q := backend.SyncRequest{Limit: limit}
	a.State(&q, w, 0)
	return q
}

// granted is an account that was granted 10 tokens in window 1.
func granted(t *testing.T) *Account {
	a := new(Account)
	m := a.Apply(statement(a, 0), backend.SyncReply{State: backend.State{Window: 1, Remaining: 60}, Grant: 10, Granted: 10, Total: 50}, 0)
	require.Equal(t, Moved{Taken: 10}, m)
	return a
}

// TestStatement: what an account says. What was charged to all is said only with the
// total that belongs to it.
func TestStatement(t *testing.T) {
	a := granted(t)
	assert.Equal(t, backend.SyncRequest{Limit: limit, Window: 1, Granted: 10, Total: 50, Used: 40}, statement(a, 1))
	a.Return(4)
	a.Declare(3)
	assert.Equal(t, backend.SyncRequest{Limit: limit, Window: 1, Granted: 10, Returned: 4, Debt: 3, Total: 50, Used: 36}, statement(a, 1), "the first to return them")
	assert.EqualValues(t, 40, statement(a, 1).Used, "others may have them by now")
	a.total = 0
	assert.Zero(t, statement(a, 1).Used)
	a.total = 1
	assert.EqualValues(t, 40, statement(a, 1).Used)
}

// TestApplySameWindow: the reply confirms what the statement said, and not what was
// returned and declared after it.
func TestApplySameWindow(t *testing.T) {
	a := granted(t)
	a.Return(4)
	a.Declare(3)
	q := statement(a, 1)
	a.Return(2)
	a.Declare(5)
	r := backend.SyncReply{State: backend.State{Window: 1, Remaining: 120}, Grant: 7, Granted: 17, Returned: 4, Debt: 3}
	assert.Equal(t, Moved{Taken: 7 + 3, Returned: 4}, a.Apply(q, r, 0))
	assert.EqualValues(t, 2, a.Unconfirmed())
	assert.EqualValues(t, 5, a.Unpaid())
	next := statement(a, 1)
	assert.Equal(t, []int64{17, 6, 8, 0}, []int64{next.Granted, next.Returned, next.Debt, next.Used})
	assert.Equal(t, Moved{Taken: 5, Returned: 2}, a.Apply(next, backend.SyncReply{
		State: backend.State{Window: 1}, Granted: 17, Returned: 6, Debt: 8,
	}, 0))
	assert.Equal(t, Moved{}, a.Apply(next, backend.SyncReply{
		State: backend.State{Window: 1}, Granted: 17, Returned: 6, Debt: 8,
	}, 0), "nothing is told twice")
	assert.Equal(t, Moved{}, a.Apply(next, backend.SyncReply{
		State: backend.State{Window: 1}, Granted: 17, Returned: 6, Debt: 7,
	}, 0), "nor taken back")
}

// TestApplyDebt: a store that has charged less debt than was stated is told again, and
// of one that has charged more, in an earlier stay in the window, that is added.
func TestApplyDebt(t *testing.T) {
	a := granted(t)
	a.Declare(5)
	r := backend.SyncReply{State: backend.State{Window: 1}, Granted: 10, Debt: 3}
	assert.Equal(t, Moved{Taken: 3}, a.Apply(statement(a, 1), r, 0))
	assert.EqualValues(t, 2, a.Unpaid())
	r.Debt = 9
	assert.Equal(t, Moved{Taken: 2}, a.Apply(statement(a, 1), r, 0))
	assert.Equal(t, open{debt: 9, stated: 9, paid: 9}, *a.open)
	a.Declare(1)
	assert.EqualValues(t, 10, statement(a, 1).Debt)

	a = granted(t)
	assert.Equal(t, Moved{}, a.Apply(statement(a, 1), r, 0))
	assert.Equal(t, open{debt: 9, stated: 9, paid: 9}, *a.open)
}

// TestApplyOtherWindow: the window is over, or the store has carried what is left of
// it into another.
func TestApplyOtherWindow(t *testing.T) {
	for _, row := range []struct {
		name                 string
		carried              bool
		debt                 int64 // that the store knows of in the new window
		moved                Moved
		unconfirmed, unpaid  int64
		spent, inUse, ledger int64
	}{
		// 10 granted, 4 returned and 2 more after the statement; 1 held, 3 spent;
		// a debt of 3 and 5 more after the statement; then a grant of 7.
		{"over", false, 0, Moved{Taken: 7, Expired: 1 + 6, Overdrawn: 8}, 0, 0, 3, 0, 7},
		{"over, with debt of before", false, 9, Moved{Taken: 7, Expired: 1 + 6, Overdrawn: 8}, 0, 0, 3, 0, 7},
		{"carried", true, 0, Moved{Taken: 7 + 3, Returned: 4}, 2, 5, 6, 6, 16},
		{"carried to debt of before", true, 9, Moved{Taken: 7 + 3, Returned: 4}, 2, 5, 6, 6, 16},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := granted(t)
			a.Return(4)
			a.Declare(3)
			q := statement(a, 1)
			a.Return(2)
			a.Declare(5)
			require.EqualValues(t, 3, a.Spent(1))
			m := a.Apply(q, backend.SyncReply{
				State: backend.State{Window: 2}, Carried: row.carried, Grant: 7, Granted: row.ledger, Debt: row.debt,
			}, 1)
			assert.Equal(t, row.moved, m)
			held := int64(7)
			if row.carried {
				held++
			}
			assert.Equal(t, row.unconfirmed, a.Unconfirmed())
			assert.Equal(t, row.unpaid, a.Unpaid())
			assert.Equal(t, row.spent, a.Spent(held))
			assert.Equal(t, row.inUse, a.InUse(held))
			q = statement(a, 2)
			assert.Equal(t, row.debt+row.unpaid, q.Debt)
			assert.Equal(t, row.unconfirmed, q.Returned)
		})
	}
}

// TestIdleAccountIsSmall: what only some accounts need is dropped when nothing is
// left of it.
func TestIdleAccountIsSmall(t *testing.T) {
	a := granted(t)
	assert.Nil(t, a.open)
	a.Return(4)
	q := statement(a, 1)
	a.Apply(q, backend.SyncReply{State: backend.State{Window: 1}, Granted: 10, Returned: 4}, 0)
	assert.Nil(t, a.open)
}

// TestCancelDebt: only what no statement has told the store of.
func TestCancelDebt(t *testing.T) {
	a := granted(t)
	assert.Zero(t, a.CancelDebt(1))
	a.Declare(3)
	assert.EqualValues(t, 1, a.CancelDebt(1))
	statement(a, 1)
	assert.Zero(t, a.CancelDebt(1))
	a.Declare(4)
	assert.EqualValues(t, 4, a.CancelDebt(9))
	assert.EqualValues(t, 2, a.Unpaid())
	a.Declare(backend.MaxTokens)
	assert.EqualValues(t, backend.MaxTokens, a.Unpaid(), "debt has a largest number")
}

// TestDirect: what direct calls charge is spent, and not of the stock.
func TestDirect(t *testing.T) {
	a := granted(t)
	assert.Equal(t, Moved{Taken: 5}, a.Direct(5))
	assert.EqualValues(t, 5+3, a.Spent(7))
	assert.EqualValues(t, 3, a.InUse(7), "of the stock")
}

// TestUsed: what requests have used in the window, in debt too.
func TestUsed(t *testing.T) {
	a := granted(t)
	assert.EqualValues(t, 3, a.Used(7))
	a.Declare(6)
	a.Return(2)
	assert.EqualValues(t, 3+6, a.Used(5))
	statement(a, 1)
	assert.EqualValues(t, 4, a.ReturnDebt(4, 5, 1), "of the debt")
	assert.EqualValues(t, 3+2, a.Used(5))
}

// TestLeave: what is held and what is not confirmed expires with the window, and the
// rest of the account is forgotten.
func TestLeave(t *testing.T) {
	a := granted(t)
	a.Return(4)
	a.Declare(3)
	assert.Equal(t, Moved{Expired: 2 + 4, Overdrawn: 3}, a.Leave(2), "the debt was used, and nobody heard of it")
	assert.Equal(t, Account{balance: 4}, *a)
	assert.EqualValues(t, 4, a.Balance())

	a = granted(t)
	assert.Equal(t, Moved{Expired: 4}, a.Leave(4))
	assert.Equal(t, Moved{Expired: 2}, a.Expire(2))
	a.Refund(1)
	assert.EqualValues(t, 5, a.Balance())
	assert.False(t, a.Granted())
	assert.Zero(t, a.InUse(1), "refunded into a window that is over")
	assert.True(t, granted(t).Granted())
}

// TestExpire: tokens that expired were used neither in their window, nor in one that the
// account is carried over to.
func TestExpire(t *testing.T) {
	for _, expired := range []int64{0, 3} {
		a := granted(t)
		assert.Equal(t, Moved{Expired: expired}, a.Expire(expired))
		assert.Equal(t, expired > 0, a.open != nil)
		a.Return(2)
		q := statement(a, 1)
		a.Return(1)
		assert.Equal(t, 7-expired, a.InUse(0))
		assert.Equal(t, 7-expired, a.Used(0))
		a.Apply(q, backend.SyncReply{State: backend.State{Window: 2}, Granted: 8, Carried: true}, 0)
		assert.EqualValues(t, 1, a.Unconfirmed())
		assert.Equal(t, 7-expired, a.InUse(0))
	}
}

// TestOutstanding: what was returned, and debt, until the store has confirmed it.
func TestOutstanding(t *testing.T) {
	a := granted(t)
	assert.False(t, a.Outstanding())
	a.Return(1)
	assert.True(t, a.Outstanding())
	b := granted(t)
	b.Declare(1)
	assert.True(t, b.Outstanding())
	b.CancelDebt(1)
	assert.False(t, b.Outstanding())
}

// TestOverdrawn: of debt that is charged, what was above the limit then, and no grant.
func TestOverdrawn(t *testing.T) {
	for _, row := range []struct{ over, want int64 }{{0, 0}, {2, 2}, {5, 5}, {9, 5}} {
		a, q := granted(t), backend.SyncRequest{}
		a.Declare(5)
		a.State(&q, 1, 0)
		reply := backend.SyncReply{State: backend.State{Window: 1}, Granted: q.Granted, Returned: q.Returned, Debt: 5, Over: row.over}
		assert.Equal(t, Moved{Taken: 5, Overdrawn: row.want}, a.Apply(q, reply, 0))
		assert.Zero(t, a.Apply(q, reply, 0).Overdrawn, "it is charged once")
	}
}

// TestExpireDebt: debt counts as overdrawn once, and statements still carry it.
func TestExpireDebt(t *testing.T) {
	assert.Zero(t, new(Account).ExpireDebt())
	a := granted(t)
	a.Declare(5)
	assert.Equal(t, Moved{Overdrawn: 5}, a.ExpireDebt())
	assert.Zero(t, a.ExpireDebt())
	assert.Zero(t, a.Unpaid())
	q := statement(a, 1)
	assert.EqualValues(t, 5, q.Debt)
	assert.Zero(t, a.Apply(q, backend.SyncReply{State: backend.State{Window: 2}}, 0))
}

// TestReturnDebt: no more of a debt goes back than a statement has carried, less what went back
// before. It counts as returned though it was never granted.
func TestReturnDebt(t *testing.T) {
	assert.Zero(t, new(Account).ReturnDebt(3, 0, 1))
	a := new(Account)
	a.Declare(8)
	assert.Zero(t, a.ReturnDebt(3, 0, 1), "nothing is stated yet")
	assert.Zero(t, a.Unconfirmed())
	q := statement(a, 1)
	assert.EqualValues(t, 2, a.ReturnDebt(2, 0, 1), "the reply may be lost")
	a.Apply(q, backend.SyncReply{State: backend.State{Window: 1}, Granted: 10, Debt: 8, Grant: 10}, 0)
	used, balance := a.InUse(10), a.Balance()
	assert.EqualValues(t, 3, a.ReturnDebt(3, 10, 1))
	assert.EqualValues(t, 5, a.Unconfirmed())
	assert.EqualValues(t, 5, statement(a, 1).Returned)
	assert.Equal(t, used, a.InUse(10), "of what was granted")
	assert.Equal(t, balance+3, a.Balance())
	assert.EqualValues(t, 3, a.ReturnDebt(9, 10, 1))
	assert.Zero(t, a.ReturnDebt(1, 10, 1))
	assert.EqualValues(t, 8, statement(a, 1).Returned)
}

// TestReturnCarriedDebt: debt that was carried over is a grant of the other window.
func TestReturnCarriedDebt(t *testing.T) {
	a := new(Account)
	a.Declare(8)
	q := statement(a, 1)
	a.Apply(q, backend.SyncReply{State: backend.State{Window: 2}, Granted: 8, Carried: true}, 0)
	a.Declare(2)
	statement(a, 2)
	assert.EqualValues(t, 5, a.ReturnDebt(5, 0, 1), "two of the new debt, three of the carried one")
	assert.EqualValues(t, 5, a.ReturnDebt(9, 0, 1))
	assert.EqualValues(t, 10, statement(a, 2).Returned)
	assert.Zero(t, a.InUse(0))
}
