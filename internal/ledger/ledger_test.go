package ledger

import (
	"fmt"
	"math/rand/v2"
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

// TestFreesIsTrue: who waits for as long as a refusal says is admitted, and a microsecond earlier it is not.
func TestFreesIsTrue(t *testing.T) {
	refused := 0
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		limit := backend.Limit{Tokens: 1 + rnd.Int64N(10), Window: []time.Duration{20 * time.Millisecond, time.Second, time.Minute}[rnd.IntN(3)]}.Rolling()
		var c Counter
		now := int64(1e15) + rnd.Int64N(1e9)
		for seq := range int64(30) {
			need := 1 + rnd.Int64N(limit.Tokens)
			q := backend.Statement{Client: "p.1", Life: 1, Seq: 2*seq + 1, Want: need, Need: need, Least: need, Limit: limit, Rolling: backend.Rolling{Known: 2 * seq}}
			q.Exact = rnd.IntN(2) == 0
			r, _ := c.Sync(q, now)
			if r.Grant == 0 {
				refused++
				q.Seq, q.Known = 2*seq+2, 2*seq+1
				early := c.Clone()
				r2, _ := early.Sync(q, now+r.Frees.Microseconds()-1)
				require.Zero(t, r2.Grant, "seed %d", seed)
				now += r.Frees.Microseconds()
				r, _ = c.Sync(q, now)
			}
			require.Equal(t, need, r.Grant, "seed %d", seed)
			now += rnd.Int64N(limit.Window.Microseconds() / 5)
		}
	}
	require.Positive(t, refused)
}

// TestTidyRing: accounts that have nothing in the ring go, if there are many, with what was idle there.
func TestTidyRing(t *testing.T) {
	const bucket = 3_000_000 // us
	var c Counter
	ask := func(client string, seq, in int64) backend.Reply {
		q := backend.Statement{Client: client, Life: 1, Seq: seq, Want: 1, Limit: backend.Limit{Tokens: 60, Window: time.Minute}.Rolling()}
		q.Exact, q.Known = true, seq-1
		if client == "q.1" { // it asks for nothing, so nobody is called
			q.Want = 0
		}
		r, _ := c.Sync(q, in*bucket)
		return r
	}
	for i := range 100 {
		ask(fmt.Sprintf("p%d.1", i), 1, 1000)
	}
	for i := range int64(60) {
		ask("q.1", 1+i, 1001+i)
		if i == 29 {
			require.Len(t, c.Contents(1030*bucket).Clients, 101, "what they got may still be in the ring")
		}
	}
	idle := int64(0)
	for _, a := range c.head.accounts {
		idle += a.idle
	}
	require.Len(t, c.head.accounts, 63)
	require.Equal(t, []int64{idle, 63}, []int64{c.head.idle, c.head.clients})
}
