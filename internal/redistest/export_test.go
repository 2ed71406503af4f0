package redistest

// HeldBytes returns how many bytes the chunks were that [Proxy.Held] counts: when it is
// all that a client has sent, nothing of it is in the client's system any more, and lost
// with it.
func (p *Proxy) HeldBytes() int64 { return p.heldBytes.Load() }
