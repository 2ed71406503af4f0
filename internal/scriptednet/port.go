package scriptednet

import (
	"context"

	"github.com/go-reservoir/reservoir/backend"
)

// Sync implements backend.Store.
func (p *Port) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return carry(ctx, p, "sync", r.Key, func(ctx context.Context, key string) (backend.SyncReply, error) {
		r := r
		r.Key = key
		if p.Request != nil {
			p.Request(&r)
		}
		return p.store.Sync(ctx, r)
	})
}

// Take implements backend.Store.
func (p *Port) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return carry(ctx, p, "take", r.Key, func(ctx context.Context, key string) (backend.TakeReply, error) {
		r.Key = key
		return p.store.Take(ctx, r)
	})
}

// Check implements backend.Store.
func (p *Port) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	return carry(ctx, p, "check", key, func(ctx context.Context, key string) (backend.State, error) {
		return p.store.Check(ctx, key, l)
	})
}

// Refund implements backend.Store.
func (p *Port) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	return carry(ctx, p, "refund", r.Key, func(ctx context.Context, key string) (int64, error) {
		r.Key = key
		return p.store.Refund(ctx, r)
	})
}

// Reset implements backend.Store.
func (p *Port) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	return carry(ctx, p, "reset", r.Key, func(ctx context.Context, key string) (backend.State, error) {
		r.Key = key
		return p.store.Reset(ctx, r)
	})
}

var _ backend.Store = (*Port)(nil)
