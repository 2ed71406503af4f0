package redisstore

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file finds the client for the address that MOVED or ASK names. go-redis has
// one for every address, but hands out those of nodes that have slots, and looks
// for these anew each time that it is asked for all. A master that joins a cluster
// has none while the first moves to it, and a fleet that asks where the slots are
// for every call that is redirected does so at the rate of its calls.

// peers is the nodes of a cluster by their address. Those that go-redis has handed
// out are remembered; for the others there are spares.
type peers struct {
	cluster *redis.ClusterClient
	reloads *gate
	linger  time.Duration // of a spare that nobody uses

	mu     sync.Mutex               // guards what follows
	known  map[string]*redis.Client // go-redis', by the address it dials and the one it was told
	spares map[string]*spare
}

// spare is a client of our own. It belongs to no store that could be closed, so it
// closes by itself.
type spare struct {
	client  *redis.Client
	users   int
	dropped bool
	idle    *time.Timer // runs since the last user left
}

// lingering keeps a spare's connections over the pauses between two calls to slots
// that move.
const lingering = 10 * time.Second

// manySpares is how many spares there may be: of a scale-out's new masters.
const manySpares = 16

// manyPeers is how many addresses are remembered. A cluster has up to 1,000 nodes;
// one whose nodes change their addresses has new ones for ever.
const manyPeers = 2000

func newPeers(cluster *redis.ClusterClient, reloads *gate) *peers {
	return &peers{
		cluster: cluster, reloads: reloads, linger: lingering,
		known: make(map[string]*redis.Client), spares: make(map[string]*spare),
	}
}

// master is the client of the tag's master, as far as go-redis knows.
func (p *peers) master(ctx context.Context, tag string) (*redis.Client, error) {
	node, err := p.cluster.MasterForKey(ctx, tag)
	if err == nil {
		p.learn(node)
	}
	return node, err
}

// learn remembers a client of go-redis', in place of an earlier one or a spare.
func (p *peers) learn(node *redis.Client) {
	o := node.Options()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[o.Addr] == node {
		return
	}
	if len(p.known) >= manyPeers {
		clear(p.known)
	}
	for _, addr := range []string{o.Addr, o.NodeAddress} {
		p.known[addr] = node
		p.drop(addr, p.spares[addr])
	}
}

// forget is for a client that go-redis has closed: its node was away for a while.
func (p *peers) forget(node *redis.Client) {
	o := node.Options()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, addr := range []string{o.Addr, o.NodeAddress} {
		if p.known[addr] == node {
			delete(p.known, addr)
		}
	}
}

// at returns a client of the node at addr, as another node has named it, and what
// to call once it has been used.
func (p *peers) at(addr string, by *redis.Client) (node *redis.Client, done func()) {
	here := reachable(addr, by.Options().Addr)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, addr := range []string{addr, here} {
		if node := p.known[addr]; node != nil {
			return node, func() {}
		}
	}
	s := p.spares[here]
	if s == nil {
		p.makeRoom()
		s = &spare{client: p.cluster.Options().NewClient(optionsAt(here, by, p.cluster))}
		p.spares[here] = s
	}
	s.users++
	return s.client, func() { p.release(here, s) }
}

// makeRoom drops a spare if there are many. The caller holds p.mu.
func (p *peers) makeRoom() {
	for addr, s := range p.spares {
		if len(p.spares) < manySpares {
			return
		}
		p.drop(addr, s)
	}
}

// drop closes the spare, if there is one, once its last user has gone: a reply that
// is on its way would be lost with the connection. The caller holds p.mu.
func (p *peers) drop(addr string, s *spare) {
	if s == nil || s.dropped {
		return
	}
	delete(p.spares, addr)
	s.dropped = true
	if s.users == 0 {
		s.close()
	}
}

func (p *peers) release(addr string, s *spare) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.users--
	switch {
	case s.users > 0:
	case s.dropped:
		s.close()
	case s.idle == nil:
		s.idle = time.AfterFunc(p.linger, func() { p.expire(addr, s) })
	default:
		s.idle.Reset(p.linger)
	}
}

// expire closes the spare if nobody uses it. Who does will start the timer again.
func (p *peers) expire(addr string, s *spare) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.users == 0 {
		p.drop(addr, s)
	}
}

// close may wait for a peer that is gone (TLS says farewell), so nobody waits for it.
func (s *spare) close() {
	if s.idle != nil {
		s.idle.Stop()
	}
	go s.client.Close()
}

// moved asks go-redis to look where the slots are, without waiting for it. After
// ASK there is nothing new to see.
func (p *peers) moved() {
	if p.reloads.pass() {
		p.cluster.ReloadState(context.Background())
	}
}

// optionsAt is the options with which go-redis would make a client of the node at
// addr. It has made one of another node of them, and read zero, which stands for
// the default, out of -1. A connection is made for a call alone: one that is kept
// ready would have a goroutine that nobody waits for.
func optionsAt(addr string, of *redis.Client, cluster *redis.ClusterClient) *redis.Options {
	o := *of.Options()
	o.Addr, o.NodeAddress, o.MinIdleConns = addr, "", 0
	for _, d := range []*time.Duration{&o.ReadTimeout, &o.WriteTimeout, &o.MinRetryBackoff, &o.MaxRetryBackoff} {
		if *d <= 0 {
			*d--
		}
	}
	if o.MaxRetries == 0 {
		o.MaxRetries = -1
	}
	// Else they are the other client's own: it writes to its config when it connects,
	// and what NewClient has wrapped it would wrap again.
	co := cluster.Options()
	o.Dialer, o.OnConnect = co.Dialer, co.OnConnect
	o.MaintNotificationsConfig, o.PushNotificationProcessor = co.MaintNotificationsConfig, co.PushNotificationProcessor
	return &o
}

// redirect is what the outcome of a command says of where it belongs.
func redirect(err error) (addr string, asking, ok bool) {
	if addr, ok = redis.IsMovedError(err); ok {
		return bracketed(addr), false, true
	}
	addr, ok = redis.IsAskError(err)
	return bracketed(addr), true, ok
}

// bracketed is the address as it is dialled: Redis writes IPv6 without brackets.
func bracketed(addr string) string {
	i := strings.LastIndexByte(addr, ':')
	if i < 0 || strings.HasPrefix(addr, "[") {
		return addr
	}
	return net.JoinHostPort(addr[:i], addr[i+1:])
}

// reachable is the address as this process reaches it: a node that does not know
// its own host, or thinks that it is a loopback's, is where the one that names it
// was reached. go-redis does the same when it reads where the slots are.
func reachable(addr, by string) string {
	host, port, err := net.SplitHostPort(addr)
	from, _, _ := net.SplitHostPort(by)
	if err != nil || from == "" || host != "" && (!isLoopback(host) || isLoopback(from)) {
		return addr
	}
	return net.JoinHostPort(from, port)
}

func isLoopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}
