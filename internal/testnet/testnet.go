// Package testnet puts a network of the test's making between limiters and a store. It takes
// time, and loses, repeats and refuses calls as the test says; or the test moves each call by
// hand. The store can lose its data.
package testnet

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// Network is a [backend.Store] a network away. Its lock guards its fields and those of its
// calls under way; methods take it, unless they say that the caller must hold it.
type Network struct {
	sync.Mutex
	port

	// Set these before the first call, or with the lock. Each may be nil.
	Enter   func(ctx context.Context, c *Call) context.Context // sees a call before it is sent, and says with what context it goes on
	Serve   func(ctx context.Context, c *Call) error           // delays a call that has arrived, or turns it away
	Request func(q *backend.Statement)                         // changes statements
	Reply   func(reply any)                                    // changes replies: a *backend.Reply, for example
	Travel  func(who int, leg Leg) time.Duration               // how long what starts now takes; a message with a negative time is lost
	Heard   func(who int, m backend.Message)                   // sees a message after a limiter has heard it

	store    atomic.Pointer[backend.Store]
	ahead    atomic.Int64
	delay    time.Duration // each way
	fault    func(c *Call) Fault
	happened map[Fault]int
	calls    []*Call
	held     []*Call
	inFlight int
	most     int // in flight at once

	listening []*subscription
	deaf      error // why no message comes
}

// port is the network as one limiter uses it. The network itself is the port of limiter 0.
type port struct {
	net  *Network
	who  int
	skew time.Duration
}

// New returns s, delay away.
func New(s backend.Store, delay time.Duration) *Network {
	n := &Network{delay: delay, happened: map[Fault]int{}}
	n.net = n
	n.SetStore(s)
	return n
}

// Far returns a new store, delay away.
func Far(delay time.Duration) *Network { return New(memstore.New(), delay) }

// Port returns the port of limiter who. A held call of it times out later than its deadline
// by skew, or earlier if skew is negative. A caller's own timeout may fall on the deadline,
// and skew gives the two an order.
func (n *Network) Port(who int, skew time.Duration) backend.Store { return &port{n, who, skew} }

// Leg is one way of a call or of a message.
type Leg int

// The legs: of a request to the store, of its reply, and of a message to a limiter.
const (
	Going Leg = iota
	Coming
	Message
)

// takes returns how long a leg of a limiter takes that starts now: the delay, or what Travel says.
func (n *Network) takes(who int, leg Leg, delay time.Duration) time.Duration {
	if n.Travel != nil {
		return n.Travel(who, leg)
	}
	return delay
}

// Call is one call to the store.
type Call struct {
	Op, Key   string             // "sync", "check", "reset" or "publish"
	Want      int64              // tokens that it asks for or, without an account, changes
	At        time.Time          // when it was sent
	Who       int                // the limiter that made it
	Until     time.Time          // its deadline, after which the store would not execute it
	Statement *backend.Statement // of a sync
	Reply     any                // a pointer to the store's reply
	Err       error

	// Of a held call:
	Executed bool // the reply is on its way
	Ghost    bool // no caller waits for it any more
	Copied   bool // it is one of two

	number   int  // among all calls
	detached bool // see backend.Statement
	run      func() (any, error)
	answer   chan struct{}
}

// Fault is what happens to a call. Two faults are equal if they answer with the same error.
type Fault struct {
	kind string
	err  *backend.Error // what the store answers; nil = no such fault
}

// The faults. A call that hangs has no answer until its context ends; ArriveLate executes it then.
var (
	Fine        = Fault{}
	LoseRequest = Fault{kind: "lost request"}
	LoseReply   = Fault{kind: "lost reply"}
	Hang        = Fault{kind: "hung"}
	ArriveLate  = Fault{kind: "late"}
	Repeat      = Fault{kind: "repeated"} // the reply is the second one's
	Hold        = Fault{kind: "held"}     // the test moves the call, see Pick
	Refuse      = Answer(backend.Unavailable, "LOADING", false)
	Reject      = Answer(backend.Rejected, "WRONGPASS", false)
)

// ErrCut is the error of a call whose request or reply is lost.
var ErrCut = errors.New("connection cut")

// Answer is the fault of a store that answers with an error of class and does nothing else.
// If keyOnly, the error is about the call's key alone.
func Answer(class backend.Class, text string, keyOnly bool) Fault {
	return Fault{err: &backend.Error{Class: class, Err: errors.New(text), KeyOnly: keyOnly}}
}

func (f Fault) String() string {
	if f.err != nil {
		return f.err.Error()
	}
	return f.kind
}

// Faults sets the function that is asked once a call, with the lock held, what happens to it;
// nil is nothing.
func (n *Network) Faults(f func(c *Call) Fault) {
	n.Lock()
	defer n.Unlock()
	n.fault = f
}

// Always makes every call from now on meet f.
func (n *Network) Always(f Fault) { n.Faults(func(*Call) Fault { return f }) }

// Next makes the next calls of op ("" for any) meet faults, one each.
func (n *Network) Next(op string, faults ...Fault) {
	n.Faults(func(c *Call) Fault {
		if len(faults) == 0 || op != "" && c.Op != op {
			return Fine
		}
		f := faults[0]
		faults = faults[1:]
		return f
	})
}

// OnKey makes calls about key meet f, and others nothing.
func (n *Network) OnKey(key string, f Fault) {
	n.Faults(func(c *Call) Fault {
		if c.Key == key {
			return f
		}
		return Fine
	})
}

// Happened returns how many calls have met f.
func (n *Network) Happened(f Fault) int {
	n.Lock()
	defer n.Unlock()
	return n.happened[f]
}

// Calls returns the calls of op so far, in order; of all operations for "".
func (n *Network) Calls(op string) (calls []*Call) {
	n.Lock()
	defer n.Unlock()
	for _, c := range n.calls {
		if op == "" || c.Op == op {
			calls = append(calls, c)
		}
	}
	return calls
}

// Count returns the number of calls of op so far; of all operations for "".
func (n *Network) Count(op string) int { return len(n.Calls(op)) }

// MoveTo changes the distance to the store.
func (n *Network) MoveTo(delay time.Duration) {
	n.Lock()
	defer n.Unlock()
	n.delay = delay
}

// LoseData replaces the store by an empty one.
func (n *Network) LoseData() { n.SetStore(memstore.New()) }

// SetStore replaces the store, and Store returns it.
func (n *Network) SetStore(s backend.Store) { n.store.Store(&s) }
func (n *Network) Store() backend.Store     { return *n.store.Load() }

// Skew sets the store's clock ahead by d.
func (n *Network) Skew(d time.Duration) { n.ahead.Store(int64(d)) }

func (n *Network) skewed(ctx context.Context) context.Context {
	if d := n.ahead.Load(); d != 0 {
		return storeclock.With(ctx, time.Now().Add(time.Duration(d)))
	}
	return ctx
}

// MostInFlight returns how many calls were under way at once, at the most, since the last time.
func (n *Network) MostInFlight() (most int) {
	n.Lock()
	defer n.Unlock()
	most, n.most = n.most, n.inFlight
	return most
}

// Inspect is not delayed and not counted.
func (n *Network) Inspect(ctx context.Context, key string) ([]backend.Contents, error) {
	return n.Store().(backend.Inspector).Inspect(n.skewed(ctx), key)
}

// send carries one call over the network. Like a real store it returns when ctx ends, though
// the request may still arrive.
func send[R, T any](ctx context.Context, p *port, c *Call, r R, run func(backend.Store, context.Context, R) (T, error)) (T, error) {
	p.net.Lock()
	enter := p.net.Enter
	p.net.Unlock()
	if enter != nil {
		ctx = enter(ctx, c)
	}
	c.Who = p.who
	c.Until, _ = ctx.Deadline()
	c.run = func() (any, error) {
		reply, err := run(p.net.Store(), p.net.skewed(context.WithoutCancel(ctx)), r)
		if p.net.Reply != nil && err == nil {
			p.net.Reply(&reply)
		}
		return &reply, err
	}
	if err := p.carry(ctx, c); err != nil {
		var zero T
		return zero, err
	}
	return *c.Reply.(*T), nil
}

func (p *port) carry(ctx context.Context, c *Call) error {
	n := p.net
	f, delay := n.begin(c)
	defer n.end()
	unknown := func(cause error) error { return &backend.Error{Op: c.Op, Class: backend.Unknown, Err: cause} }
	switch f {
	case Hold:
		return p.await(ctx, c)
	case Hang, ArriveLate:
		<-ctx.Done()
		if f == ArriveLate {
			_, _ = c.run()
		}
		return unknown(ctx.Err())
	}
	if err := Pass(ctx, n.takes(p.who, Going, delay)); err != nil {
		return unknown(err)
	}
	switch {
	case f == LoseRequest:
		return unknown(ErrCut)
	case f == Repeat:
		_, _ = c.run()
	case f.err != nil:
		e := *f.err
		e.Op = c.Op
		return &e
	}
	n.Lock()
	serve := n.Serve
	n.Unlock()
	if serve != nil {
		if err := serve(ctx, c); err != nil {
			return err
		}
	}
	reply, err := c.run()
	if f == LoseReply {
		return unknown(ErrCut)
	}
	if err := Pass(ctx, n.takes(p.who, Coming, delay)); err != nil {
		return unknown(err)
	}
	c.Reply = reply
	return err
}

// begin records a call and draws its fate.
func (n *Network) begin(c *Call) (f Fault, delay time.Duration) {
	n.Lock()
	defer n.Unlock()
	c.At, c.number = time.Now(), len(n.calls)
	n.calls = append(n.calls, c)
	if n.fault != nil {
		f = n.fault(c)
	}
	n.happened[f]++
	n.inFlight++
	n.most = max(n.most, n.inFlight)
	if f == Hold {
		c.answer = make(chan struct{}, 1)
		n.held = append(n.held, c)
	}
	return f, n.delay
}

func (n *Network) end() {
	n.Lock()
	defer n.Unlock()
	n.inFlight--
}

// Pass lets d go by, or returns an error when ctx ends first. A socket's deadline is
// set to ctx's, and fires on its own, perhaps a moment before ctx's timer does.
func Pass(ctx context.Context, d time.Duration) error {
	var socket error
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		d, socket = time.Until(end), os.ErrDeadlineExceeded
	}
	if d <= 0 { // without a timer: in a bubble, one that is due at once can crash the race detector (Go 1.26)
		return cmp.Or(socket, ctx.Err())
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return socket
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Sync implements [backend.Store], as the next two do.
func (p *port) Sync(ctx context.Context, q backend.Statement) (backend.Reply, error) {
	if p.net.Request != nil {
		p.net.Request(&q)
	}
	c := &Call{Op: "sync", Key: q.Key, Want: q.Want, Statement: &q, detached: q.Detached}
	if q.Client == "" {
		c.Want = max(q.Need, q.Change)
		for _, d := range q.Changes {
			c.Want += d.Tokens
		}
	}
	return send(ctx, p, c, q, backend.Store.Sync)
}

func (p *port) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	return send(ctx, p, &Call{Op: "check", Key: key}, l, func(s backend.Store, ctx context.Context, l backend.Limit) (backend.State, error) {
		return s.Check(ctx, key, l)
	})
}

func (p *port) Reset(ctx context.Context, key string, l backend.Limit) (backend.Window, error) {
	return send(ctx, p, &Call{Op: "reset", Key: key}, l, func(s backend.Store, ctx context.Context, l backend.Limit) (backend.Window, error) {
		return s.Reset(ctx, key, l)
	})
}

// Listen implements [backend.Listener], if the store does: a message takes as long as a
// request, and messages stay in order. It is lost while Deafen has an error.
func (p *port) Listen(process string, hear func(backend.Message)) backend.Subscription {
	s := &subscription{net: p.net, who: p.who, hear: hear}
	s.Subscription = p.net.Store().(backend.Listener).Listen(process, func(m backend.Message) {
		if s.Err("") == nil {
			s.send(m)
		}
	})
	p.net.Lock()
	defer p.net.Unlock()
	p.net.listening = append(p.net.listening, s)
	return s
}

// Publish implements [backend.Listener].
func (p *port) Publish(ctx context.Context, m backend.Message) error {
	_, err := send(ctx, p, &Call{Op: "publish", Key: m.Key}, m, func(s backend.Store, ctx context.Context, m backend.Message) (struct{}, error) {
		return struct{}{}, s.(backend.Listener).Publish(ctx, m)
	})
	return err
}

// subscription is the subscription of a limiter.
type subscription struct {
	backend.Subscription
	net  *Network
	who  int // the limiter
	hear func(backend.Message)

	mu      sync.Mutex // held while hear runs, because its calls come one at a time
	waiting []backend.Message
}

// send delivers m after the network's delay.
func (s *subscription) send(m backend.Message) {
	s.net.Lock()
	delay := s.net.delay
	s.net.Unlock()
	takes := s.net.takes(s.who, Message, delay)
	if takes < 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, m)
	time.AfterFunc(takes, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		m := s.waiting[0]
		s.waiting = s.waiting[1:]
		if s.hear(m); s.net.Heard != nil {
			s.net.Heard(s.who, m)
		}
	})
}

// Err implements [backend.Subscription].
func (s *subscription) Err(string) error {
	s.net.Lock()
	defer s.net.Unlock()
	return s.net.deaf
}

// Deafen loses all messages to limiters from now on, and says why; nil ends that. Limiters hear of the
// change.
func (n *Network) Deafen(why error) {
	n.Lock()
	n.deaf = why
	all := slices.Clone(n.listening)
	n.Unlock()
	for _, s := range all {
		s.send(backend.Message{Kind: backend.Hearing})
	}
}
