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
	a.Begin(3)
	require.Equal(t, Moved{Taken: 10}, a.Apply(statement(a, backend.Window{}), reply(first, 10, 10, 40), 0))
	return a
}

// TestStatement: what an account says is what the last reply said, and what has changed since. Each has the next number.
func TestStatement(t *testing.T) {
	a := granted(t)
	assert.Equal(t, &backend.Statement{Limit: limit, Life: 3, Seq: 2, Window: first, Mine: 10, Used: 40}, statement(a, first))
	a.Return(4)
	a.Declare(3)
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
			a.Return(row.back)
			a.Declare(row.debt)
			q := statement(a, first)
			a.Return(row.lateBack)
			a.Declare(row.lateBy)
			kept := Keeps(q, row.reply)
			assert.Equal(t, row.moved, a.Apply(q, row.reply, row.held))
			held := row.reply.Grant
			if kept {
				held += row.held
			}
			assert.Equal(t, row.unconfirmed, a.Unconfirmed())
			assert.Equal(t, row.unpaid, a.Unpaid())
			assert.Equal(t, row.unconfirmed+row.unpaid > 0, a.Outstanding())
			assert.Equal(t, row.spent, a.Spent(held))
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
	a.Return(4)
	a.Apply(statement(a, first), reply(first, 6, 0, 36), 0)
	assert.Nil(t, a.open)
}

// TestCancelDebt: only what no statement has told the store of.
func TestCancelDebt(t *testing.T) {
	a := granted(t)
	assert.Zero(t, a.CancelDebt(1))
	a.Declare(3)
	assert.EqualValues(t, 1, a.CancelDebt(1))
	statement(a, first)
	assert.Zero(t, a.CancelDebt(1))
	a.Declare(4)
	assert.EqualValues(t, 4, a.CancelDebt(9))
	assert.EqualValues(t, 2, a.Unpaid())
	a.Declare(backend.MaxTokens)
	assert.EqualValues(t, backend.MaxTokens, a.Unpaid(), "debt has a largest number")
}

// TestUsed: what requests have used in the window, in debt too.
func TestUsed(t *testing.T) {
	a := granted(t)
	assert.EqualValues(t, 3, a.Used(7))
	a.Declare(6)
	a.Return(2)
	assert.EqualValues(t, 3, a.InUse(5), "of what is charged")
	assert.EqualValues(t, 3+6, a.Used(5))
}

// TestLeave: what is held and what is not confirmed expires with the window, and the
// rest of the account is forgotten, except for its number.
func TestLeave(t *testing.T) {
	a := granted(t)
	a.Return(4)
	a.Declare(3)
	assert.Equal(t, Moved{Expired: 2 + 4, Overdrawn: 3, Settled: 7}, a.lose(2), "the debt was used, and nobody heard of it")
	assert.Equal(t, Account{life: 3, seq: 1, balance: 4}, *a)
	assert.EqualValues(t, 3, a.life)

	a = granted(t)
	assert.Equal(t, Moved{Expired: 4, Settled: 6}, a.lose(4))
	assert.Equal(t, Moved{Expired: 2}, a.Expire(2))
	a.Refund(1)
	assert.EqualValues(t, 5, a.balance)
	assert.False(t, a.mine > 0)
	assert.Zero(t, a.InUse(1), "refunded into a window that is over")
	assert.True(t, granted(t).mine > 0)
}

// TestExpire: tokens that expired were used neither in their window, nor in one that the
// account is carried over to.
func TestExpire(t *testing.T) {
	for _, expired := range []int64{0, 3} {
		a := granted(t)
		assert.Equal(t, Moved{Expired: expired}, a.Expire(expired))
		assert.Equal(t, expired > 0, a.open != nil)
		a.Return(2)
		q := statement(a, first)
		a.Return(1)
		assert.Equal(t, 7-expired, a.InUse(0))
		assert.Equal(t, 7-expired, a.Used(0))
		a.Apply(q, reply(second, 8, 0, 50), 0)
		assert.EqualValues(t, 1, a.Unconfirmed())
		assert.Equal(t, 7-expired, a.InUse(0))
	}
}

// TestOverdrawn: of debt that is charged, what was above the limit then, and no grant.
func TestOverdrawn(t *testing.T) {
	for _, row := range []struct{ over, want int64 }{{-1, 0}, {0, 0}, {2, 2}, {5, 5}, {9, 5}} {
		a := granted(t)
		a.Declare(5)
		q := statement(a, first)
		assert.Equal(t, Moved{Taken: 5 + 4, Overdrawn: row.want}, a.Apply(q, reply(first, 19, 4, limit.Tokens+row.over+4), 0))
		assert.Zero(t, a.Apply(statement(a, first), reply(first, 19, 0, limit.Tokens+row.over+4), 0).Overdrawn, "it is charged once")
	}
}

// TestExpireDebt: debt that reaches no store in time counts as overdrawn once, and is not stated any more.
func TestExpireDebt(t *testing.T) {
	assert.Zero(t, new(Account).ExpireDebt())
	a := granted(t)
	a.Declare(5)
	statement(a, first)
	assert.Equal(t, Moved{Overdrawn: 5}, a.ExpireDebt())
	assert.Zero(t, a.ExpireDebt())
	assert.Zero(t, a.Unpaid())
	q := statement(a, first)
	assert.Zero(t, q.Change)
	assert.Equal(t, Moved{Settled: 10}, a.Apply(q, reply(second, 0, 0, 0), 0))
}
