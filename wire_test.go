package reservoir

import (
	"context"
	"errors"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/deadline"
)

// wire is a network between some limiters and one store on which nothing moves by
// itself: calls lie on it until the simulation has the store execute one, brings a
// reply, repeats or loses either. So it can reorder and delay in every way. Once it
// is calm every call is answered at once.
type wire struct {
	store  *memstore.Store
	bug    func(op string, reply any) // a deliberate one, in replies; nil = none
	forget func(r *backend.SyncRequest)
	log    func(format string, args ...any)

	mu     sync.Mutex
	calm   bool
	losses int // of the store's data: it goes on with other keys
	mail   []*letter
	posted map[port]int
}

// port is where one limiter's calls come from.
type port struct {
	*wire
	who  int
	skew time.Duration // by which calls return after their deadline, or before it
}

// letter is a call on its way, and its reply.
type letter struct {
	who     int
	op, key string
	number  int // of its port's, so that a list of letters has one order
	run     func(key string) (any, error)
	until   time.Time // when the store would not execute it any more
	done    bool      // executed; the reply is on its way
	ghost   bool      // nobody waits any more
	copied  bool      // it is one of two
	charged int64     // tokens, when it was executed
	last    any       // what the store said
	reply   any
	err     error
	heard   chan struct{}
}

var (
	errLost    = &backend.Error{Op: "wire", Class: backend.Unknown, Err: errors.New("lost")}
	errLoading = &backend.Error{Op: "wire", Class: backend.Unavailable, Err: errors.New("LOADING")}
)

func newWire(s *memstore.Store) *wire { return &wire{store: s, posted: map[port]int{}} }

// carry makes one call over the wire.
func carry[T any](ctx context.Context, p *port, op, key string, call func(ctx context.Context, key string) (T, error)) (reply T, err error) {
	m := &letter{who: p.who, op: op, key: key, heard: make(chan struct{}, 1)}
	m.run = func(key string) (any, error) { return call(context.Background(), key) }
	m.until, _ = ctx.Deadline()
	if !p.post(p, m) {
		p.wait(ctx, m, p.skew)
	}
	if m.err != nil {
		return reply, m.err
	}
	return m.reply.(T), nil
}

// post puts m on the wire. It reports whether it was answered at once.
func (w *wire) post(p *port, m *letter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.posted[*p]++
	m.number = w.posted[*p]
	if w.calm {
		w.execute(m)
		w.log("at once %d: %s %s %+v %v", m.who, m.op, m.key, m.last, m.err)
		return true
	}
	w.mail = append(w.mail, m)
	w.log("posted %d: %s %s", m.who, m.op, m.key)
	return false
}

// wait returns with the answer, or when ctx ends. The time-outs of a call and of
// the caller that waits for it fall on one instant; skew gives them an order.
func (w *wire) wait(ctx context.Context, m *letter, skew time.Duration) {
	t := time.NewTimer(time.Until(m.until) + skew)
	defer t.Stop()
	var done <-chan struct{}
	if _, plain := ctx.(*deadline.Context); !plain && m.op != "sync" {
		done = ctx.Done()
	}
	select {
	case <-m.heard:
		return
	case <-t.C:
	case <-done:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m.ghost, m.err = true, &backend.Error{Op: m.op, Class: backend.Unknown, Err: context.DeadlineExceeded}
	if m.done {
		w.drop(m)
	}
}

// execute has the store do what m says. Under mu.
func (w *wire) execute(m *letter) {
	reply, err := w.perform(m)
	m.done, m.last = true, reply
	if r, ok := reply.(*backend.SyncReply); ok {
		m.charged = r.Grant - r.Recovered
	}
	if !m.ghost {
		m.reply, m.err = reply, err
	}
}

func (w *wire) perform(m *letter) (any, error) {
	reply, err := m.run(w.keyOf(m.key))
	if w.bug != nil && err == nil {
		w.bug(m.op, reply)
	}
	return reply, err
}

// keyOf is what the store knows as key now.
func (w *wire) keyOf(key string) string {
	if w.losses > 0 {
		key += "#" + strconv.Itoa(w.losses)
	}
	return key
}

// twin is a copy of m whose reply nobody will hear.
func (m *letter) twin(copied bool) *letter {
	return &letter{
		who: m.who, op: m.op, key: m.key, number: m.number, run: m.run, until: m.until,
		ghost: true, copied: copied || m.copied,
	}
}

// answer brings m's reply to who waits for it. Under mu.
func (w *wire) answer(m *letter) {
	w.drop(m)
	if !m.ghost {
		m.heard <- struct{}{}
	}
}

func (w *wire) drop(m *letter) {
	for i, other := range w.mail {
		if other == m {
			w.mail = append(w.mail[:i], w.mail[i+1:]...)
			return
		}
	}
}

// pick returns the i-th letter of those on the wire, in the order of their ports:
// several may have been posted at one instant, by goroutines in any order. nil if
// there is none.
func (w *wire) pick(i int) *letter {
	if len(w.mail) == 0 {
		return nil
	}
	sort.SliceStable(w.mail, func(i, j int) bool {
		a, b := w.mail[i], w.mail[j]
		switch {
		case a.who != b.who:
			return a.who < b.who
		case a.key != b.key:
			return a.key < b.key
		case a.op != b.op:
			return a.op < b.op
		}
		return a.number < b.number
	})
	return w.mail[i%len(w.mail)]
}

// late reports whether the store would refuse m for having come too late.
func (m *letter) late() bool { return time.Now().After(m.until) }

// The store's replies travel as pointers, so that a bug can change them.

func (p *port) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	reply, err := carry(ctx, p, "sync", r.Key, func(ctx context.Context, key string) (*backend.SyncReply, error) {
		r := r
		r.Key = key
		if p.forget != nil {
			p.forget(&r)
		}
		reply, err := p.store.Sync(ctx, r)
		return &reply, err
	})
	if err != nil {
		return backend.SyncReply{}, err
	}
	return *reply, nil
}

func (p *port) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	reply, err := carry(ctx, p, "take", r.Key, func(ctx context.Context, key string) (*backend.TakeReply, error) {
		r := r
		r.Key = key
		reply, err := p.store.Take(ctx, r)
		return &reply, err
	})
	if err != nil {
		return backend.TakeReply{}, err
	}
	return *reply, nil
}

func (p *port) Check(ctx context.Context, key string, l Limit) (backend.State, error) {
	return carry(ctx, p, "check", key, func(ctx context.Context, key string) (backend.State, error) {
		return p.store.Check(ctx, key, l)
	})
}

func (p *port) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	return carry(ctx, p, "refund", r.Key, func(ctx context.Context, key string) (int64, error) {
		r := r
		r.Key = key
		return p.store.Refund(ctx, r)
	})
}

var _ backend.Store = (*port)(nil)
