package reservoir

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/key"
)

// This file has the messages of other processes, and what is known of whether they come.

// hearing is what a limiter knows of messages. It has not listened until the first key.
type hearing struct {
	l    *Limiter
	once sync.Once                            // listen
	sub  atomic.Pointer[backend.Subscription] // nil until then, and for ever if the store is no Listener

	news  atomic.Bool     // a message has said that messages may have ceased or begun to come
	looks atomic.Int64    // due, and the one under way
	deaf  map[string]bool // shards that the hook knows to be unheard; of the look under way

	mu     sync.Mutex
	asks   map[*key.Key]bool // keys whose limits are to be asked for again
	asking int               // calls of WithLimits for them that are under way
}

// listen lets messages of the store come here, from the first key on.
func (h *hearing) listen() {
	if s, ok := h.l.store.(backend.Listener); ok {
		sub := s.Listen(h.l.env.Client, h.hear)
		h.sub.Store(&sub)
	}
}

// hear is called with each message, one at a time.
func (h *hearing) hear(m backend.Message) {
	k := h.l.env.FindStored(m.Key)
	switch {
	case m.Kind == backend.Hearing:
		h.news.Store(true)
		h.look()
	case k == nil:
	case m.Kind == backend.Changed:
		h.askLater(k)
	default:
		k.Hear(m)
	}
}

// Hears reports whether messages about a key of the store come here.
func (c caller) Hears(stored string) bool {
	sub := c.l.hearing.sub.Load()
	return sub != nil && (*sub).Err(stored) == nil
}

// of returns why messages about keys of the shard do not come here, or nil, also if no
// key in memory is on it.
func (h *hearing) of(s *key.Shard) error {
	stored, ok := s.SomeKey()
	if !ok {
		return nil
	}
	if sub := h.sub.Load(); sub != nil {
		return (*sub).Err(stored)
	}
	return backend.ErrNoListener
}

// look tells the keys if messages may have ceased or begun to come, and calls the hook for each
// shard of which that is true. Only one look is under way, so the hook learns the changes in order.
func (h *hearing) look() {
	env := &h.l.env
	if !env.Calls.Begin() {
		return
	}
	if h.looks.Add(1) > 1 { // who looks now looks again
		env.Calls.End()
		return
	}
	go func() {
		defer env.Calls.End()
		for due := int64(1); due > 0; due = h.looks.Add(-due) {
			due = h.looks.Load()
			if h.news.Swap(false) {
				for k := range env.All {
					k.Heard()
				}
			}
			for s := range env.Shards {
				h.report(s.Name, h.of(s))
			}
		}
	}()
}

// report calls the hook if it does not know that yet. That the store is no Listener is no
// news.
func (h *hearing) report(shard string, why error) {
	hook, deaf := h.l.hooks.Subscription, why != nil
	if hook == nil || deaf == h.deaf[shard] || errors.Is(why, backend.ErrNoListener) {
		return
	}
	if h.deaf == nil {
		h.deaf = make(map[string]bool)
	}
	h.deaf[shard] = deaf
	hook(shard, why)
}

// askLater asks for the limit of k again. Messages may come for many keys at once, so only so many
// calls of WithLimits are under way, and a key waits for one at most.
func (h *hearing) askLater(k *key.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asks == nil {
		h.asks = make(map[*key.Key]bool)
	}
	h.asks[k] = true
	h.askMore()
}

// askMore begins calls for keys that wait. A request that comes later asks, too, if one fails. The caller holds the lock.
func (h *hearing) askMore() {
	calls := &h.l.env.Calls
	for k := range h.asks {
		if h.asking == key.CallsAtOnce || !calls.Begin() {
			return
		}
		h.asking++
		delete(h.asks, k)
		go func() {
			defer calls.End()
			defer func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.asking--
				h.askMore()
			}()
			_ = k.Refresh()
		}()
	}
	h.asks = nil
}
