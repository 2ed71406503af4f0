package reservoir

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/key"
)

// This file has the messages between processes: those that come here, what is known of whether they
// come, and the one that Refresh sends.

// hearing is what a limiter knows of messages. The zero value has not listened yet.
type hearing struct {
	once sync.Once
	sub  atomic.Pointer[backend.Subscription] // nil until the first key, and for ever if the store is no Listener

	news  atomic.Bool     // a message has said that messages may have ceased or begun to come
	looks atomic.Int64    // due, and the one under way
	deaf  map[string]bool // shards that the hook knows to be unheard; of the look under way

	mu     sync.Mutex
	asks   map[*key.Key]bool // keys whose limits are to be asked for again
	asking int               // calls of WithLimits for them that are under way
}

// listen lets messages of the store come here, from the first key on.
func (l *Limiter) listen() {
	if s, ok := l.store.(backend.Listener); ok {
		l.hearing.once.Do(func() {
			sub := s.Listen(l.env.Client, l.hear)
			l.hearing.sub.Store(&sub)
		})
	}
}

// hear is called with each message, one at a time.
func (l *Limiter) hear(m backend.Message) {
	k := l.env.FindStored(m.Key)
	switch {
	case m.Kind == backend.Hearing:
		l.hearing.news.Store(true)
		l.look()
	case k == nil:
	case m.Kind == backend.Changed:
		l.askLater(k)
	default:
		k.Hear(m)
	}
}

// unheard returns why messages about a key of the store do not come here, or nil.
func (l *Limiter) unheard(stored string) error {
	if sub := l.hearing.sub.Load(); sub != nil {
		return (*sub).Err(stored)
	}
	return backend.ErrNoListener
}

// Hears reports whether messages about a key of the store come here.
func (c caller) Hears(stored string) bool { return c.l.unheard(stored) == nil }

// hearingOf returns why messages about keys of the shard do not come here, or nil, also if no
// key in memory is on it.
func (l *Limiter) hearingOf(s *key.Shard) error {
	if stored, ok := s.ProbeKey(); ok {
		return l.unheard(stored)
	}
	return nil
}

// look tells the keys if messages may have ceased or begun to come, and calls the hook for each
// shard of which that is true. Only one look is under way, so the hook learns the changes in order.
func (l *Limiter) look() {
	h := &l.hearing
	if !l.env.Calls.Begin() {
		return
	}
	if h.looks.Add(1) > 1 { // who looks now looks again
		l.env.Calls.End()
		return
	}
	go func() {
		defer l.env.Calls.End()
		for due := int64(1); due > 0; due = h.looks.Add(-due) {
			due = h.looks.Load()
			if h.news.Swap(false) {
				for k := range l.env.All {
					k.Heard()
				}
			}
			for name, s := range l.shards.Range {
				l.reportHearingOf(name.(string), l.hearingOf(s.(*key.Shard)))
			}
		}
	}()
}

// reportHearingOf calls the hook if it does not know that yet. That the store is no Listener is no
// news.
func (l *Limiter) reportHearingOf(shard string, why error) {
	h := &l.hearing
	if deaf := why != nil; l.hooks.Subscription != nil && deaf != h.deaf[shard] && !errors.Is(why, backend.ErrNoListener) {
		if h.deaf == nil {
			h.deaf = make(map[string]bool)
		}
		h.deaf[shard] = deaf
		l.hooks.Subscription(shard, why)
	}
}

// askLater asks for the limit of k again. Messages may come for many keys at once, so only so many
// calls of WithLimits are under way, and a key waits for one at most.
func (l *Limiter) askLater(k *key.Key) {
	h := &l.hearing
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asks == nil {
		h.asks = make(map[*key.Key]bool)
	}
	h.asks[k] = true
	l.askMore()
}

// askMore begins calls for keys that wait. The caller holds the lock.
func (l *Limiter) askMore() {
	h := &l.hearing
	for k := range h.asks {
		if h.asking == key.CallsAtOnce || !l.env.Calls.Begin() {
			return
		}
		h.asking++
		delete(h.asks, k)
		go l.askAgain(k)
	}
	h.asks = nil
}

// askAgain asks for the limit of k, which a request that comes later does too if this fails.
func (l *Limiter) askAgain(k *key.Key) {
	defer l.env.Calls.End()
	defer func() {
		h := &l.hearing
		h.mu.Lock()
		defer h.mu.Unlock()
		h.asking--
		l.askMore()
	}()
	_ = k.Refresh()
}

// Refresh makes all processes ask the function of [WithLimits] for the limit of key again, because
// it has changed, as by a ban or another plan. It costs a store call, of Op "publish". This process
// has asked when Refresh returns. Others ask when the message comes, within a round trip, if they
// have the key in memory; otherwise its next request asks anyway. Each process calls the
// function for at most 32 keys at once, and once for all Refreshes of a key that wait for that. A program
// without WithLimits may call Refresh too, if it has the same [WithName].
//
// After an error this process has asked nevertheless. A [*StoreError] says that the message may not
// have been sent; it wraps [backend.ErrNoListener] if the store sends none. Other
// errors are [ErrKey], [ErrClosed], that of ctx and, if the function returned a limit out of range,
// [ErrLimit]. Without an error too, a process to which no message comes does not hear of it; see
// [Hooks].Subscription.
func (l *Limiter) Refresh(ctx context.Context, key string) error {
	if err := l.usable(ctx, key); err != nil {
		return err
	}
	var asked error
	if k := l.env.Find(key); k != nil {
		asked = k.Refresh()
	}
	return cmp.Or(l.publish(ctx, backend.Message{Kind: backend.Changed, Key: l.env.Stored(key)}), asked)
}

// publish sends a message to all processes.
func (l *Limiter) publish(ctx context.Context, m backend.Message) error {
	s, ok := l.store.(backend.Listener)
	if !ok {
		return &StoreError{Op: "publish", Class: backend.Rejected, Err: backend.ErrNoListener}
	}
	call := l.newCall(l.shardOf(m.Key), m.Key, StoreCall{Op: "publish"})
	_, err := await(ctx, call, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Publish(ctx, m) }, nil)
	return l.failed(ctx, err)
}
