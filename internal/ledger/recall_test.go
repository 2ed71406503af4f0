package ledger

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// holder is an honest client: everything that it holds is idle, because those who wait for
// tokens spend them when they come.
type holder struct {
	backend.Statement
	stock int64
	known bool                // the ledger should know of the stock
	sent  []backend.Statement // that may arrive again
}

// TestIdleIsBounded: whatever replies are lost and whatever statements are late or repeated, the
// head's figures are the sums of the accounts', the ledger knows of all that was stated and not called, and no
// more than the limit is granted.
func TestIdleIsBounded(t *testing.T) {
	called, void := 0, 0
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		some := func(n int64) int64 { return rnd.Int64N(n + 1) }
		limit := backend.Limit{Tokens: 1 + some(1000), Window: time.Minute}
		holders, c, now := make(map[string]*holder), Counter{}, int64(1e12)
		for _, name := range []string{"a", "b", "c"} {
			holders[name] = &holder{Statement: backend.Statement{Client: name, Life: 1, Limit: limit, Runs: true, Hints: backend.Hints{Exact: true}}}
		}
		for range 300 {
			now += some(100_000)
			for _, h := range holders {
				h.stock -= some(h.stock)
				if rnd.IntN(2) > 0 {
					continue
				}
				back := some(h.stock)
				h.Change, h.stock = h.Change-back, h.stock-back
				h.Want, h.Idle = some(limit.Tokens/4), h.stock
				h.Need = some(h.Want)
				h.Seq++
				h.Leaving, h.Waited, h.Deaf = rnd.IntN(9) == 0, rnd.IntN(3) == 0, rnd.IntN(9) == 0
				q := h.Statement
				var early []Message
				if h.sent = append(h.sent, q); rnd.IntN(4) == 0 { // an earlier one comes again, or this one does
					_, early = c.Sync(h.sent[rnd.IntN(len(h.sent))], now)
				}
				reply, messages := c.Sync(q, now)
				if reply.Void { // it was here, and its reply went to nobody
					void++
				} else if rnd.IntN(4) > 0 {
					h.Window, h.Mine, h.Used, h.Change = reply.Window, reply.Mine, reply.Used, 0
					h.stock += reply.Grant - min(q.Need, reply.Grant)
				}
				for _, m := range append(early, messages...) {
					if m.Kind == backend.Recall {
						holders[m.Process].known = false
						called++
					}
				}
				h.known = !q.Deaf && !q.Leaving
				if c.head == nil {
					continue // nobody has asked for a token
				}
				var sum head
				for name, a := range c.head.accounts {
					if sum.sum, sum.idle = sum.sum+a.mine, sum.idle+a.idle; !a.left {
						sum.clients++
					}
					if a.called {
						sum.out++
					}
					if h := holders[name]; h.known {
						require.GreaterOrEqual(t, a.idle, h.stock, "seed %d, %s", seed, name)
					}
				}
				require.Equal(t, []int64{sum.sum, sum.idle, sum.clients, sum.out}, []int64{c.head.sum, c.head.idle, c.head.clients, c.head.out}, "seed %d", seed)
				require.Equal(t, c.count, c.head.sum)
				require.LessOrEqual(t, c.count, limit.Tokens)
			}
		}
	}
	require.Positive(t, called)
	require.Positive(t, void)
}

// TestUsedUpToldToMany: however many clients share a window, one message tells them that it is used up, and one that many tokens
// are back.
func TestUsedUpToldToMany(t *testing.T) {
	const clients = 1000
	c, limit, now := Counter{}, backend.Limit{Tokens: clients, Window: time.Minute}, int64(1e12)
	ask := func(i, change int64) []Message {
		q := backend.Statement{Client: strconv.FormatInt(i, 10), Life: 1, Seq: now, Limit: limit, Want: 1, Need: 1, Least: 1, Runs: true, Hints: backend.Hints{Exact: true}}
		if change != 0 {
			q.Window, q.Mine, q.Change, q.Want, q.Need, q.Least = c.head.Window, 1, change, 0, 0, 0
		}
		now += 1000
		_, messages := c.Sync(q, now)
		return messages
	}
	for i := range int64(clients) {
		require.Empty(t, ask(i, 0))
	}
	told := ask(clients, 0)
	require.Len(t, told, 1)
	require.Equal(t, backend.Exhausted, told[0].Kind)
	require.Empty(t, told[0].Process)
	require.Empty(t, ask(clients+1, 0), "once a window")
	again := 0
	for i := range int64(clients / 2) {
		messages := ask(i, -1)
		require.LessOrEqual(t, len(messages), AtOnce)
		if len(messages) == 1 && messages[0].Process == "" {
			again++
			require.Equal(t, backend.Again, messages[0].Kind)
		}
	}
	require.Positive(t, again)
	require.LessOrEqual(t, again, 2, "at most once in 250 ms")
}
