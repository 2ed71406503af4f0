package reservoir_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// network is a store behind a network of the test's making: it takes time, and it
// loses, repeats and refuses calls as told. The store itself can lose its data.
type network struct {
	mu    sync.Mutex
	store backend.Store
	delay time.Duration // each way
	calls []call
	fault func(c call) fault // asked once per call; nil = none
	hurt  map[fault]int      // faults that happened

	server   server // how many calls the store serves in a second; any number by default
	inFlight int    // calls under way
	most     int    // the most calls that were under way at once
}

// call is one call to the store, as it was sent.
type call struct {
	op, key string
	at      time.Time
	want    int64 // tokens that a sync asks for, or that a take or settlement names
}

// fault is what happens to a call. Two faults are equal if they answer with the
// same error.
type fault struct {
	kind kind
	err  *backend.Error // what an answered call says; its Op is filled in
}

type kind int

const (
	none      kind = iota
	lost           // the request does not arrive
	lostReply      // the request arrives, its reply does not
	hung           // no answer until the call's context ends; the request is lost
	late           // no answer until the call's context ends; the request arrives then
	repeated       // the request arrives twice; the reply is the second one's
	answered       // the store answers with an error and does nothing else
	panicked       // the store panics instead of sending
	exited         // the store ends its goroutine instead of sending
)

var (
	errCut  = errors.New("connection cut")
	errFull = errors.New("max number of clients reached")
)

// The faults that tests ask for.
var (
	fine        = fault{}
	loseRequest = fault{kind: lost}
	loseReply   = fault{kind: lostReply}
	hang        = fault{kind: hung}
	arriveLate  = fault{kind: late}
	repeat      = fault{kind: repeated}
	panics      = fault{kind: panicked}
	exits       = fault{kind: exited}
	refuse      = answer(backend.Unavailable, "LOADING", false)
	reject      = answer(backend.Rejected, "WRONGPASS", false)
)

// answer is the fault of a store that answers with an error of class. keyOnly says
// that the error is about the call's key alone.
func answer(class backend.Class, text string, keyOnly bool) fault {
	return fault{kind: answered, err: &backend.Error{Class: class, Err: errors.New(text), KeyOnly: keyOnly}}
}

// overNetwork is s, delay away.
func overNetwork(s backend.Store, delay time.Duration) *network {
	return &network{store: s, delay: delay, hurt: map[fault]int{}}
}

// far is a new store, delay away.
func far(delay time.Duration) *network { return overNetwork(memstore.New(), delay) }

// count is the number of calls of op so far; of all operations for "".
func (n *network) count(op string) (c int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, made := range n.calls {
		if op == "" || made.op == op {
			c++
		}
	}
	return c
}

// set says what happens to calls from now on; nil is nothing.
func (n *network) set(f func(c call) fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = f
}

// always makes every call from now on meet f.
func (n *network) always(f fault) { n.set(func(call) fault { return f }) }

// next makes the next calls of op (any for "") meet faults, one each.
func (n *network) next(op string, faults ...fault) {
	n.set(func(c call) fault { // under mu
		if len(faults) == 0 || op != "" && c.op != op {
			return fine
		}
		f := faults[0]
		faults = faults[1:]
		return f
	})
}

// onKey makes calls about key meet f, and others nothing.
func (n *network) onKey(key string, f fault) {
	n.set(func(c call) fault {
		if c.key == key {
			return f
		}
		return fine
	})
}

// happened is how many calls have met f.
func (n *network) happened(f fault) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hurt[f]
}

// moveTo changes the distance to the store.
func (n *network) moveTo(delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = delay
}

// loseData replaces the store by an empty one, which learns from its clients what
// it had granted.
func (n *network) loseData() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.store = memstore.New()
}

// begin records a call and draws its fate.
func (n *network) begin(c call) (fault, time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.at = time.Now()
	n.calls = append(n.calls, c)
	f := fine
	if n.fault != nil {
		f = n.fault(c)
	}
	n.hurt[f]++
	n.inFlight++
	n.most = max(n.most, n.inFlight)
	return f, n.delay
}

// end records that the caller of a call has its answer.
func (n *network) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inFlight--
}

// mostInFlight is how many calls were under way at once, at the most, since the last time.
func (n *network) mostInFlight() (most int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	most, n.most = n.most, n.inFlight
	return most
}

// server is a store of finite capacity: it serves calls one after another, in the order in
// which they arrive, so a call waits for all that came before. A call whose caller has left
// by then is not carried out, as redisstore's scripts see to, and yet has taken its time.
type server struct {
	each   time.Duration // the time that a call takes; 0 = none
	line   int           // so many calls may wait, and others are turned away; 0 = any number
	free   time.Time     // when all calls that have arrived are served
	late   int           // calls that waited longer than their callers
	turned int           // calls that were turned away
}

// capacity lets the store serve so many calls in a second, and line of them wait; 0 is
// any number.
func (n *network) capacity(perSecond, line int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.server = server{line: line}
	if perSecond > 0 {
		n.server.each = time.Second / time.Duration(perSecond)
	}
}

// overloaded is how many calls came too late to be served, or were turned away.
func (n *network) overloaded() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.server.late + n.server.turned
}

// serve waits until the store has served all calls that came before, and this one.
func (n *network) serve(ctx context.Context, op string) error {
	n.mu.Lock()
	s := &n.server
	if s.each == 0 {
		n.mu.Unlock()
		return nil
	}
	now := time.Now()
	wait := max(s.free.Sub(now), 0) + s.each
	full := s.line > 0 && wait > time.Duration(s.line)*s.each
	if full {
		s.turned++
	} else {
		s.free = now.Add(wait)
	}
	n.mu.Unlock()
	if full {
		return &backend.Error{Op: op, Class: backend.Unavailable, Err: errFull}
	}
	err := pass(ctx, wait)
	if err == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.late++
	return &backend.Error{Op: op, Class: backend.Unknown, Err: err}
}

func (n *network) inner() backend.Store {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.store
}

// send carries one call over the network. Like a real store it returns when ctx
// ends, though the request may still arrive.
func send[T any](ctx context.Context, n *network, c call, run func(context.Context, backend.Store) (T, error)) (reply T, err error) {
	f, delay := n.begin(c)
	defer n.end()
	unknown := func(cause error) error { return &backend.Error{Op: c.op, Class: backend.Unknown, Err: cause} }
	switch f.kind {
	case panicked:
		panic("the store panics")
	case exited:
		runtime.Goexit()
	}
	if f.kind == hung || f.kind == late {
		<-ctx.Done()
		if f.kind == late {
			_, _ = run(context.WithoutCancel(ctx), n.inner())
		}
		return reply, unknown(ctx.Err())
	}
	if err := pass(ctx, delay); err != nil {
		return reply, unknown(err)
	}
	switch f.kind {
	case lost:
		return reply, unknown(errCut)
	case answered:
		e := *f.err
		e.Op = c.op
		return reply, &e
	case repeated:
		_, _ = run(context.WithoutCancel(ctx), n.inner())
	}
	if err := n.serve(ctx, c.op); err != nil {
		return reply, err
	}
	got, err := run(context.WithoutCancel(ctx), n.inner())
	if f.kind == lostReply {
		return reply, unknown(errCut)
	}
	if err := pass(ctx, delay); err != nil {
		return reply, unknown(err)
	}
	return got, err
}

// pass lets d go by, or returns an error when ctx ends first. A socket's deadline is
// set to ctx's, and fires on its own, perhaps a moment before ctx's timer does.
func pass(ctx context.Context, d time.Duration) error {
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

func (n *network) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return send(ctx, n, call{op: "sync", key: r.Key, want: r.Want}, func(ctx context.Context, s backend.Store) (backend.SyncReply, error) {
		return s.Sync(ctx, r)
	})
}

func (n *network) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return send(ctx, n, call{op: "take", key: r.Key, want: r.Tokens}, func(ctx context.Context, s backend.Store) (backend.TakeReply, error) {
		return s.Take(ctx, r)
	})
}

func (n *network) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	return send(ctx, n, call{op: "check", key: key}, func(ctx context.Context, s backend.Store) (backend.State, error) {
		return s.Check(ctx, key, l)
	})
}

func (n *network) Settle(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	return send(ctx, n, call{op: "settle", key: r.Key, want: r.Tokens}, func(ctx context.Context, s backend.Store) (backend.SettleReply, error) {
		return s.Settle(ctx, r)
	})
}

func (n *network) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	return send(ctx, n, call{op: "reset", key: r.Key}, func(ctx context.Context, s backend.Store) (backend.State, error) {
		return s.Reset(ctx, r)
	})
}

// Inspect is not delayed and not counted.
func (n *network) Inspect(ctx context.Context, key string) (backend.Contents, error) {
	return n.inner().(backend.Inspector).Inspect(ctx, key)
}

var (
	_ backend.Store     = (*network)(nil)
	_ backend.Inspector = (*network)(nil)
)

// open returns a limiter over s that is closed, and checked to balance, at the end.
func open(t testing.TB, s backend.Store, l reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	t.Helper()
	lim, err := reservoir.New(s, l, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = lim.Close(context.Background())
		balance(t, lim)
		require.Zero(t, lim.Stats().Held)
	})
	return lim
}

// fleet returns so many limiters over s, each as of a process of its own.
func fleet(t testing.TB, processes int, s backend.Store, l reservoir.Limit, opts ...reservoir.Option) []*reservoir.Limiter {
	t.Helper()
	all := make([]*reservoir.Limiter, processes)
	for i := range all {
		all[i] = open(t, s, l, opts...)
	}
	return all
}

// balance checks that every token is accounted for, once. It holds while no call
// is under way.
func balance(t testing.TB, l *reservoir.Limiter) {
	t.Helper()
	s := l.Stats()
	require.Equal(t, s.Taken+s.Refunded, s.Spent+s.Returned+s.Expired+s.Held, "%+v", s)
	for _, n := range []int64{s.Taken, s.Refunded, s.Spent, s.Returned, s.Expired, s.Held} {
		require.GreaterOrEqual(t, n, int64(0), "%+v", s)
	}
}

// allow asks for n tokens and fails the test on an error. Helper and require take longer than
// the request, so only an error pays for them.
func allow(t testing.TB, l *reservoir.Limiter, key string, n int64) reservoir.Result {
	r, err := l.AllowN(context.Background(), key, n)
	if err != nil {
		t.Helper()
		require.NoError(t, err)
	}
	return r
}

// drain asks for n tokens again and again until one request is refused. It returns
// the tokens that were admitted.
func drain(t testing.TB, l *reservoir.Limiter, key string, n int64) (admitted int64) {
	t.Helper()
	for allow(t, l, key, n).Allowed {
		admitted += n
	}
	return admitted
}

// used is what the store has charged to key in the window that is open.
func used(t testing.TB, s backend.Inspector, key string) int64 {
	t.Helper()
	c, err := s.Inspect(context.Background(), key)
	require.NoError(t, err)
	return c.Used
}

// crowd calls f n times at once and returns when all calls have.
func crowd(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// waitFor is Limiter.WaitN.
func waitFor(ctx context.Context, l *reservoir.Limiter, key string, n int64) error {
	_, err := l.WaitN(ctx, key, n)
	return err
}

// batches are the policies that hold stock, and everyPolicy adds the ones that hold
// none.
func batches() map[string]reservoir.Option {
	return map[string]reservoir.Option{
		"fixed=64": reservoir.WithBatch(reservoir.Fixed(64)),
		"ladder":   reservoir.WithBatch(reservoir.Ladder(1, 100)),
		"adaptive": reservoir.WithBatch(reservoir.Adaptive(1, 0)),
	}
}

func everyPolicy() map[string]reservoir.Option {
	all := batches()
	all["fixed=1"] = reservoir.WithBatch(reservoir.Fixed(1))
	all["direct"] = reservoir.WithDirect()
	return all
}

// rtt is the distance of stores where nothing else is said.
const rtt = 2 * time.Millisecond

// inBubble runs f as a subtest on virtual time.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// every asks for n tokens again and again, at random times that are interval apart on
// average, until end. It tells each when a request was made and what came of it.
func every(t *testing.T, l *reservoir.Limiter, n int64, interval time.Duration, end time.Time, each func(at time.Time, r reservoir.Result)) {
	rnd := rand.New(rand.NewPCG(uint64(interval), uint64(n)))
	for {
		time.Sleep(time.Duration(rnd.ExpFloat64() * float64(interval)))
		at := time.Now()
		if !at.Before(end) {
			return
		}
		r := allow(t, l, "k", n)
		if each != nil {
			each(at, r)
		}
	}
}

// stats adds up what limiters have counted.
func stats(all ...*reservoir.Limiter) (sum reservoir.Stats) {
	for _, l := range all {
		s := l.Stats()
		sum.StoreCalls += s.StoreCalls
		sum.Spent += s.Spent
		sum.Probes += s.Probes
		sum.Denied += s.Denied
		sum.Held += s.Held
		sum.Overdrawn += s.Overdrawn
	}
	return sum
}

// diary is what a hook was told of store calls.
type diary struct {
	mu    sync.Mutex
	calls []diaryEntry
}

type diaryEntry struct {
	reservoir.StoreCall
	begun, ended time.Time
}

func (d *diary) keep() reservoir.Option {
	return reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) {
		d.mu.Lock()
		defer d.mu.Unlock()
		e := diaryEntry{c, time.Now().Add(-c.Duration), time.Now()}
		e.Duration = 0
		d.calls = append(d.calls, e)
	}})
}

// all lists the calls so far.
func (d *diary) all() []diaryEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]diaryEntry(nil), d.calls...)
}

// crowdOnce has so many callers ask for n tokens at once, and returns how many were
// admitted and how many got an error.
func crowdOnce(l *reservoir.Limiter, callers int, n int64) (admitted, failed int64) {
	var ok, bad atomic.Int64
	crowd(callers, func(int) {
		switch r, err := l.AllowN(context.Background(), "k", n); {
		case err != nil:
			bad.Add(1)
		case r.Allowed:
			ok.Add(1)
		}
	})
	return ok.Load(), bad.Load()
}

// exhaust uses up the limit of key through the limiters in turn.
func exhaust(t *testing.T, all []*reservoir.Limiter, key string) {
	t.Helper()
	for _, l := range all {
		drain(t, l, key, 1)
	}
}
