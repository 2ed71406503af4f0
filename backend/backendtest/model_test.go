package backendtest

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/ledger"
	"github.com/go-reservoir/reservoir/internal/mailbox"
)

// model is a store of the module's own rules that can lose its data.
type model struct {
	mu       sync.Mutex
	counters map[[2]string]*ledger.Counter // by key and name
	mail     mailbox.Office
}

func newModel() *model { return &model{counters: make(map[[2]string]*ledger.Counter)} }

// at returns a counter, and makes it if there is none.
func (m *model) at(key, counter string) *ledger.Counter {
	name := [2]string{key, counter}
	if m.counters[name] == nil {
		m.counters[name] = new(ledger.Counter)
	}
	return m.counters[name]
}

// step makes one step, unless the request is faulty or ctx is over.
func (m *model) step(ctx context.Context, op string, faulty error, step func(now int64)) error {
	if faulty != nil {
		return faulty
	}
	if err := ctx.Err(); err != nil {
		return &backend.Error{Op: op, Class: backend.Unavailable, Err: err}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	step(Now(ctx).UnixMicro())
	return nil
}

func (m *model) Sync(ctx context.Context, q backend.Statement) (r backend.Reply, err error) {
	err = m.step(ctx, "sync", q.Validate(), func(now int64) {
		var list []ledger.Message
		r, list = m.at(q.Key, q.Limit.Counter()).Sync(q, now)
		m.send(list, q.Key, q.Limit)
	})
	return r, err
}

func (m *model) Check(ctx context.Context, key string, l backend.Limit) (s backend.State, err error) {
	err = m.step(ctx, "check", cmp.Or(backend.ValidateKey(key), l.Validate()), func(now int64) {
		s = m.at(key, l.Counter()).Check(l, now)
	})
	return s, err
}

func (m *model) Reset(ctx context.Context, key string, l backend.Limit) (void backend.Window, err error) {
	err = m.step(ctx, "reset", cmp.Or(backend.ValidateKey(key), l.Validate()), func(now int64) {
		void, _ = m.at(key, l.Counter()).Reset(l, now)
		m.mail.SendAll(backend.Message{Kind: backend.Voided, Key: key, Counter: l.Counter(), Window: void})
	})
	return void, err
}

func (m *model) Inspect(ctx context.Context, key string) (list []backend.Contents, err error) {
	err = m.step(ctx, "inspect", backend.ValidateKey(key), func(now int64) {
		for name, counter := range m.counters {
			c := counter.Contents(now)
			if c.Counter = name[1]; name[0] == key && (c.Window.End != 0 || c.Held > 0) {
				list = append(list, c)
			}
		}
	})
	slices.SortFunc(list, func(a, b backend.Contents) int { return cmp.Compare(a.Counter, b.Counter) })
	return list, err
}

func (m *model) send(list []ledger.Message, key string, l backend.Limit) {
	for _, one := range list {
		if one.Key, one.Counter = key, l.Counter(); one.Process == "" {
			m.mail.SendAll(one.Message)
		} else {
			m.mail.Send(one.Process, one.Message)
		}
	}
}

func (m *model) Listen(process string, hear func(backend.Message)) backend.Subscription {
	return hearing{m.mail.Open(process, hear)}
}

func (m *model) Publish(ctx context.Context, message backend.Message) error {
	return m.step(ctx, "publish", backend.ValidateKey(message.Key), func(int64) { m.mail.SendAll(message) })
}

// hearing is a subscription that always hears.
type hearing struct{ close func() bool }

func (hearing) Err(string) error { return nil }
func (h hearing) Close()         { h.close() }

func (m *model) lose(part func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	part()
	return nil
}

func (m *model) LoseCount(_ context.Context, key, counter string) error {
	return m.lose(func() { m.at(key, counter).LoseCount() })
}

func (m *model) LoseEnd(_ context.Context, key, counter string) error {
	return m.lose(func() { m.at(key, counter).LoseEnd() })
}

func (m *model) LoseLedger(_ context.Context, key, counter string) error {
	return m.lose(func() { m.at(key, counter).LoseLedger() })
}

func (m *model) LoseRing(_ context.Context, key, counter string) error {
	return m.lose(func() { *m.at(key, counter) = ledger.Counter{} })
}

// TestModel: the module's own rules pass, also where data is lost.
func TestModel(t *testing.T) {
	m := newModel()
	Run(t, func(*testing.T) backend.Store { return m })
}
