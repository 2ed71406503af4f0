package account

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/internal/ledger"
)

// TestAbsolute: each row is one statement and what comes of it. What the store should have charged is
// always what is held and spent.
func TestAbsolute(t *testing.T) {
	first, second := ledger.Window{End: 1000}, ledger.Window{End: 2000, Gen: 7}
	for _, row := range []struct {
		name   string
		before func(a *Absolute) // the statement is made
		during func(a *Absolute) // while it is on its way
		reply  ledger.Reply
		says   int64 // mine + change of the statement
		kept   bool
		after  int64 // what the store should have charged then
	}{
		{"a grant", nil, nil, ledger.Reply{Window: first, Mine: 15, Grant: 5}, 10, true, 15},
		{"a give-back is confirmed", func(a *Absolute) { a.GiveBack(4) }, nil, ledger.Reply{Window: first, Mine: 6}, 6, true, 6},
		{"one meanwhile is not", nil, func(a *Absolute) { a.GiveBack(4) }, ledger.Reply{Window: first, Mine: 10}, 10, true, 6},
		{"used without a grant", func(a *Absolute) { a.Overdraw(3) }, func(a *Absolute) { a.Overdraw(1) }, ledger.Reply{Window: first, Mine: 13}, 13, true, 14},
		{"the window is over", func(a *Absolute) { a.GiveBack(4) }, nil, ledger.Reply{Window: second, Mine: 5, Grant: 5}, 6, false, 5},
		{"it was carried", func(a *Absolute) { a.GiveBack(4) }, nil, ledger.Reply{Window: second, Mine: 11, Grant: 5}, 6, true, 11},
		{"none is open", nil, nil, ledger.Reply{}, 10, false, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			var a Absolute
			a.Begin(1)
			q := ledger.Statement{}
			a.State(&q, true)
			a.Take(1, ledger.Reply{Window: first, Mine: 10, Grant: 10})
			if row.before != nil {
				row.before(&a)
			}
			a.State(&q, true)
			assert.Equal(t, row.says, q.Mine+q.Change)
			if row.during != nil {
				row.during(&a)
			}
			counts, kept := a.Take(q.Seq, row.reply)
			assert.True(t, counts)
			assert.Equal(t, row.kept, kept)
			assert.Equal(t, row.after, a.Charged())
			assert.Equal(t, row.reply.Window, a.Window())
		})
	}
}

// TestOnlyTheLastReply: replies to earlier statements, second replies, and void ones change nothing, and
// what they said in vain is said again.
func TestOnlyTheLastReply(t *testing.T) {
	var a Absolute
	a.Begin(3)
	var lost, q ledger.Statement
	a.State(&lost, false)
	a.State(&q, false)
	reply := ledger.Reply{Window: ledger.Window{End: 1000}, Mine: 5, Grant: 5}
	for _, r := range []struct {
		seq   int64
		reply ledger.Reply
		takes bool
	}{{lost.Seq, reply, false}, {q.Seq, ledger.Reply{Void: true}, false}, {q.Seq, ledger.Reply{Astray: true}, false}, {q.Seq, reply, true}, {q.Seq, reply, false}} {
		counts, _ := a.Take(r.seq, r.reply)
		assert.Equal(t, r.takes, counts)
	}
	a.GiveBack(2)
	a.State(&lost, true)
	assert.False(t, a.Settled())
	a.State(&q, true)
	assert.Equal(t, int64(-2), q.Change)
	a.Take(q.Seq, ledger.Reply{Window: ledger.Window{End: 1000}, Mine: 3})
	assert.True(t, a.Settled())
	assert.Equal(t, int64(3), a.Charged())
}
