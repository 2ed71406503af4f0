package tokens

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

var limit = backend.Limit{Tokens: 100, Window: time.Minute}

var first, second = backend.Window{End: 1000}, backend.Window{End: 2000, Gen: 7}

// statement is what a says about the window, with a limit of 100.
func statement(a *Account, w backend.Window) *backend.Statement {
	q := &backend.Statement{Limit: limit}
	a.State(q, w)
	return q
}

// reply is one about the window, of which mine tokens are charged to the account, with the grant, and used to everybody.
func reply(w backend.Window, mine, grant, used int64) *backend.Reply {
	return &backend.Reply{State: backend.State{Window: w}, Mine: mine, Grant: grant, Used: used}
}

// granted is an account that was granted 10 tokens in the first window, when 40 were charged to everybody.
func granted(t *testing.T) *Account {
	a := new(Account)
	a.Begin(limit, 3)
	m, held := apply(a, statement(a, backend.Window{}), reply(first, 10, 10, 40), 0)
	require.Equal(t, Moved{Taken: 10}, m)
	require.EqualValues(t, 10, held)
	return a
}

func apply(a *Account, q *backend.Statement, r *backend.Reply, held int64) (Moved, int64) {
	return a.Apply(q, r, held, 0, 0)
}

// outstanding is the debt and what has gone back that no reply has confirmed.
func outstanding(a *Account) []int64 {
	debt, back := a.Unconfirmed()
	return []int64{debt, back}
}

// TestStatement: what an account says is what the last reply said, and what has changed since. Each has the next number.
func TestStatement(t *testing.T) {
	a := granted(t)
	assert.Equal(t, &backend.Statement{Limit: limit, Life: 3, Seq: 2, Window: first, Mine: 10, Used: 40}, statement(a, first))
	a.Return(4, 10)
	a.Declare(3, 0)
	for seq := range int64(2) { // the reply to the first is lost
		assert.Equal(t, &backend.Statement{Limit: limit, Life: 3, Seq: 3 + seq, Window: first, Mine: 10, Change: -1, Used: 40}, statement(a, first))
	}
}

// TestApply: each row is one statement and what comes of it. An account has 10 tokens, of which 5 are held; before the
// statement, and before its reply, some go back and some are used without a grant. What the store should have charged is
// always what is held and spent.
func TestApply(t *testing.T) {
	for _, row := range []struct {
		name                         string
		back, debt, lateBack, lateBy int64
		held                         int64 // when the reply comes
		reply                        *backend.Reply
		moved                        Moved
		unconfirmed, unpaid          int64
		charged                      int64 // what the next statement says
		spent                        int64 // over the account's life, then
	}{
		{"a grant", 0, 0, 0, 0, 5, reply(first, 17, 7, 60), Moved{Taken: 7}, 0, 0, 17, 5},
		{"a lost grant is not there", 0, 0, 0, 0, 5, reply(first, 10, 0, 40), Moved{}, 0, 0, 10, 5},
		{"a give-back is confirmed", 4, 0, 0, 0, 1, reply(first, 6, 0, 36), Moved{Returned: 4}, 0, 0, 6, 5},
		{"one after the statement is not", 0, 0, 4, 0, 1, reply(first, 10, 0, 40), Moved{}, 4, 0, 6, 5},
		{"part of it", 2, 0, 3, 0, 0, reply(first, 8, 0, 38), Moved{Returned: 2}, 3, 0, 5, 5},
		{"debt is charged", 0, 3, 0, 0, 5, reply(first, 13, 0, 43), Moved{Taken: 3}, 0, 0, 13, 8},
		{"debt after the statement is not", 0, 3, 0, 2, 5, reply(first, 13, 0, 43), Moved{Taken: 3}, 0, 2, 15, 8},
		{"all at once", 2, 3, 1, 2, 2, reply(first, 18, 7, 70), Moved{Taken: 3 + 7, Returned: 2}, 1, 2, 19, 8},
		{"the window is over", 4, 3, 0, 2, 1, reply(second, 7, 7, 7), Moved{Taken: 7, Expired: 1 + 4, Overdrawn: 5, Settled: 10}, 0, 0, 7, 5},
		{"it was carried", 4, 3, 1, 2, 0, reply(second, 9+7, 7, 50), Moved{Taken: 3 + 7, Returned: 4}, 1, 2, 17, 8},
		{"none is open", 4, 0, 0, 0, 1, reply(backend.Window{Gen: 7}, 0, 0, 0), Moved{Expired: 5, Settled: 5}, 0, 0, 0, 5},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := granted(t)
			a.Return(row.back, 10)
			a.Declare(row.debt, 0)
			q := statement(a, first)
			a.Return(row.lateBack, 10)
			a.Declare(row.lateBy, 0)
			m, held := apply(a, q, row.reply, row.held)
			assert.Equal(t, row.moved, m)
			assert.Equal(t, []int64{row.unpaid, row.unconfirmed}, outstanding(a))
			assert.Equal(t, row.spent, a.Balance-held-row.unconfirmed)
			next := statement(a, row.reply.Window)
			assert.Equal(t, row.charged, next.Mine+next.Change)
			assert.Equal(t, row.reply.Used, next.Used)
		})
	}
}

// TestIdleAccountIsSmall: what only some accounts need is dropped when nothing is
// left of it.
func TestIdleAccountIsSmall(t *testing.T) {
	a := granted(t)
	assert.Nil(t, a.open)
	a.Return(4, 10)
	apply(a, statement(a, first), reply(first, 6, 0, 36), 0)
	assert.Nil(t, a.open)
}

// TestRefundPaysForDebt: of the debt, only what no statement has told the store of.
func TestRefundPaysForDebt(t *testing.T) {
	a := granted(t)
	a.Declare(3, 0)
	assert.Equal(t, Refunded{Paid: 1}, a.Refund(1, 0, 0, true, 0))
	statement(a, first)
	assert.Equal(t, Refunded{Stock: 1}, a.Refund(1, 0, 0, true, 0))
	a.Declare(4, 0)
	assert.Equal(t, Refunded{Back: 5, Paid: 4}, a.Refund(10, 0, 1, false, 0), "no more than 9 of the 10 are spent")
	assert.Equal(t, []int64{2, 5}, outstanding(a))
	a.Declare(backend.MaxTokens, 0)
	assert.Equal(t, []int64{backend.MaxTokens, 5}, outstanding(a), "debt has a largest number")
}

// TestLeave: what is held and what is not confirmed expires with the window, and the
// rest of the account is forgotten, except for its number.
func TestLeave(t *testing.T) {
	a := granted(t)
	a.Return(4, 10)
	a.Declare(3, 0)
	assert.Equal(t, Moved{Expired: 2 + 4, Overdrawn: 3, Settled: 4 + 3}, a.Drop(2), "the debt was used, and nobody heard of it")
	assert.Equal(t, Account{life: 3, seq: 1, Balance: 4}, *a)

	a = granted(t)
	assert.Equal(t, Moved{Expired: 4, Settled: 6}, a.Drop(4))
	assert.Zero(t, a.InUse(1), "refunded into a window that is over")
}

// TestExpire: tokens that expired were used neither in their window, nor in one that the account is carried over to. Debt that reaches no
// store in time counts as overdrawn once, and is not stated any more.
func TestExpire(t *testing.T) {
	for _, held := range []int64{0, 3} {
		a := granted(t)
		a.Return(2, 10)
		a.Declare(5, 0)
		q := statement(a, first)
		m, left := a.Expire(held, 0)
		assert.Equal(t, Moved{Expired: held, Overdrawn: 5}, m)
		assert.Zero(t, left)
		again, _ := a.Expire(0, 0)
		assert.Zero(t, again)
		assert.EqualValues(t, -2, statement(a, first).Change)
		a.Return(1, 1)
		assert.Equal(t, 7-held, a.InUse(0))
		q.Seq = a.seq
		apply(a, q, reply(second, 8, 0, 50), 0)
		assert.Equal(t, []int64{0, 1}, outstanding(a))
		assert.Equal(t, 7-held, a.InUse(0))
		assert.True(t, a.Has(first, second))
	}
	a := granted(t)
	_, _ = a.Expire(0, 0)
	assert.Nil(t, a.open, "nothing was held")
}

// TestOverdrawn: of debt that is charged, what was above the limit then, and no grant.
func TestOverdrawn(t *testing.T) {
	for _, row := range []struct{ over, want int64 }{{-1, 0}, {0, 0}, {2, 2}, {5, 5}, {9, 5}} {
		a := granted(t)
		a.Declare(5, 0)
		m, _ := apply(a, statement(a, first), reply(first, 19, 4, limit.Tokens+row.over+4), 0)
		assert.Equal(t, Moved{Taken: 5 + 4, Overdrawn: row.want}, m)
		m, _ = apply(a, statement(a, first), reply(first, 19, 0, limit.Tokens+row.over+4), 0)
		assert.Zero(t, m.Overdrawn, "it is charged once")
	}
}
