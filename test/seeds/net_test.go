package seeds

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// network is a network between limiters and one store on which only the test moves calls: it
// has the store execute one, delivers a reply, and repeats or loses either. When the network
// is calm, every call is answered at once. Its lock guards its fields and those of its calls.
// Methods that need the lock say so.
type network struct {
	sync.Mutex
	Mail   []*call // under way
	Calm   bool
	Losses int // how often the store has lost its data; it goes on with other keys

	// Reply and Request, if not nil, change replies and requests, as a deliberate bug does.
	Reply   func(reply any)
	Request func(r *backend.SyncRequest)

	store  *memstore.Store
	log    func(format string, args ...any)
	posted map[int]int
}

// port is the network as one limiter uses it. It is a [backend.Store].
type port struct {
	*network
	who  int
	skew time.Duration
}

// call is a call on its way, and its reply.
type call struct {
	Who      int
	Op, Key  string
	Until    time.Time // after this the store would not execute it
	Executed bool      // the reply is on its way
	Ghost    bool      // no caller waits for it any more
	Copied   bool      // it is one of two
	Charged  int64     // tokens that the store charged for it
	Reply    any       // the store's reply
	Err      error

	number int // among the calls of its port, so that a list of calls has one order
	run    func(key string) (any, error)
	heard  chan struct{}
}

// The errors of calls that do not arrive, and of a store that is not ready.
var (
	errLost    = &backend.Error{Op: "net", Class: backend.Unknown, Err: errors.New("lost")}
	errLoading = &backend.Error{Op: "net", Class: backend.Unavailable, Err: errors.New("LOADING")}
)

// newNetwork returns a network in front of store. It reports every step to log.
func newNetwork(store *memstore.Store, log func(format string, args ...any)) *network {
	return &network{store: store, log: log, posted: map[int]int{}}
}

// Port returns the port of limiter who. Its calls time out later than their deadlines by
// skew, or earlier if skew is negative. A caller's own time-out may fall on the deadline,
// and skew gives the two an order.
func (n *network) Port(who int, skew time.Duration) *port { return &port{n, who, skew} }

// Inspect returns what the store has of key.
func (n *network) Inspect(key string) backend.Contents {
	c, err := n.store.Inspect(context.Background(), n.keyOf(key))
	if err != nil {
		panic(err)
	}
	return c
}

// carry makes one call.
func carry[T any](ctx context.Context, p *port, op, key string, run func(ctx context.Context, key string) (T, error)) (reply T, err error) {
	c := &call{Who: p.who, Op: op, Key: key, heard: make(chan struct{}, 1)}
	c.run = func(key string) (any, error) {
		reply, err := run(context.Background(), key)
		return &reply, err
	}
	c.Until, _ = ctx.Deadline()
	if !p.post(c) {
		p.await(ctx, c)
	}
	if c.Err != nil {
		return reply, c.Err
	}
	return *c.Reply.(*T), nil
}

// post puts c on the network. It reports whether it was answered at once.
func (p *port) post(c *call) bool {
	p.Lock()
	defer p.Unlock()
	p.posted[p.who]++
	c.number = p.posted[p.who]
	if p.Calm {
		p.Execute(c)
		return true
	}
	p.Mail = append(p.Mail, c)
	p.log("posted %d: %s %s", c.Who, c.Op, c.Key)
	return false
}

// await returns with the answer, or when the call's time is over. It ignores the context
// of a sync, which no caller can end before its deadline.
func (p *port) await(ctx context.Context, c *call) {
	var timeout <-chan time.Time
	if !c.Until.IsZero() {
		t := time.NewTimer(time.Until(c.Until) + p.skew)
		defer t.Stop()
		timeout = t.C
	}
	var done <-chan struct{}
	if c.Op != "sync" {
		done = ctx.Done()
	}
	select {
	case <-c.heard:
		return
	case <-timeout:
	case <-done:
	}
	p.Lock()
	defer p.Unlock()
	c.Ghost, c.Err = true, &backend.Error{Op: c.Op, Class: backend.Unknown, Err: context.DeadlineExceeded}
	if c.Executed {
		p.drop(c)
	}
}

// Execute has the store carry out c. The lock must be held.
func (n *network) Execute(c *call) {
	reply, err := c.run(n.keyOf(c.Key))
	if n.Reply != nil && err == nil {
		n.Reply(reply)
	}
	if r, ok := reply.(*backend.SyncReply); ok {
		c.Charged = r.Grant - r.Recovered
	}
	n.log("execute %d: %s %s ghost=%v %+v %v", c.Who, c.Op, c.Key, c.Ghost, reply, err)
	c.Executed = true
	if !c.Ghost {
		c.Reply, c.Err = reply, err
	}
}

// keyOf is the name under which the store keeps key now.
func (n *network) keyOf(key string) string {
	if n.Losses > 0 {
		key += "#" + strconv.Itoa(n.Losses)
	}
	return key
}

// Copy puts c on the network once more; nobody receives the copy's reply. copied says that
// c stays there as well. The lock must be held.
func (n *network) Copy(c *call, copied bool) {
	n.Mail = append(n.Mail, &call{
		Who: c.Who, Op: c.Op, Key: c.Key, number: c.number, run: c.run, Until: c.Until,
		Ghost: true, Copied: copied || c.Copied,
	})
}

// Answer delivers c's reply, or its error, to its caller. The lock must be held.
func (n *network) Answer(c *call) {
	n.drop(c)
	if !c.Ghost {
		c.heard <- struct{}{}
	}
}

func (n *network) drop(c *call) {
	n.Mail = slices.DeleteFunc(n.Mail, func(other *call) bool { return other == c })
}

// Pick returns the i-th call under way, counted round and round, or nil if there are none.
// It orders calls by port and key, because goroutines may post several at one instant in
// any order. The lock must be held.
func (n *network) Pick(i int) *call {
	if len(n.Mail) == 0 {
		return nil
	}
	slices.SortStableFunc(n.Mail, func(a, b *call) int {
		return cmp.Or(a.Who-b.Who, strings.Compare(a.Key, b.Key), strings.Compare(a.Op, b.Op), a.number-b.number)
	})
	return n.Mail[i%len(n.Mail)]
}

// Late reports whether the store would refuse c because it comes too late.
func (c *call) Late() bool { return !c.Until.IsZero() && time.Now().After(c.Until) }

func (p *port) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return carry(ctx, p, "sync", r.Key, func(ctx context.Context, key string) (backend.SyncReply, error) {
		r := r
		r.Key = key
		if p.Request != nil {
			p.Request(&r)
		}
		return p.store.Sync(ctx, r)
	})
}

func (p *port) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return carry(ctx, p, "take", r.Key, func(ctx context.Context, key string) (backend.TakeReply, error) {
		r.Key = key
		return p.store.Take(ctx, r)
	})
}

func (p *port) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	return carry(ctx, p, "check", key, func(ctx context.Context, key string) (backend.State, error) {
		return p.store.Check(ctx, key, l)
	})
}

func (p *port) Settle(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	return carry(ctx, p, "settle", r.Key, func(ctx context.Context, key string) (backend.SettleReply, error) {
		r.Key = key
		return p.store.Settle(ctx, r)
	})
}

func (p *port) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	return carry(ctx, p, "reset", r.Key, func(ctx context.Context, key string) (backend.State, error) {
		r.Key = key
		return p.store.Reset(ctx, r)
	})
}
