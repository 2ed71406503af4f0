package redistest

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy forwards TCP connections to one address and makes faults on the way. A
// new proxy makes none.
//
// Faults that look for a command look at request chunks: what one read from a
// client's connection returns. A client that is not pipelining sends a command
// of up to some kilobytes as one chunk, a pipeline as one or a few. The search
// ignores case and knows nothing of the protocol, so the text "eval" is found in
// EVALSHA too, and in a key of that name. An empty text is found in every chunk,
// also in the first one of a connection, by which a client introduces itself.
//
// All methods may be called at any time, by any goroutine.
type Proxy struct {
	t      testing.TB
	target string
	addr   string
	wg     sync.WaitGroup // of all goroutines

	mu       sync.Mutex // guards what follows, up to the counters
	listener net.Listener
	links    map[*link]struct{}
	closed   bool
	swallow  rule
	drop     rule
	repeat   rule
	delay    time.Duration
	holding  bool
	gate     chan struct{} // closed while traffic may pass

	swallowed, dropped, repeated, delayed, held, heldBytes, cut atomic.Int64
}

// rule is a fault that waits for the next n chunks with a text.
type rule struct {
	text []byte // in lower case
	n    int
}

// take reports whether the fault is due for the chunk, in lower case.
func (r *rule) take(chunk []byte) bool {
	if r.n <= 0 || !bytes.Contains(chunk, r.text) {
		return false
	}
	r.n--
	return true
}

// NewProxy starts a proxy in front of the target, a host and port. The target
// need not be up: the proxy dials it for each connection, and closes those that
// it cannot serve. The proxy ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener := listen(t)
	p := &Proxy{
		t:      t,
		target: target,
		addr:   listener.Addr().String(),
		links:  make(map[*link]struct{}),
		gate:   make(chan struct{}),
	}
	close(p.gate)
	p.admit(listener)
	t.Cleanup(p.close)
	return p
}

// Dialer returns a dial function for the options of a client that learns the
// servers' addresses by itself, that of a cluster or of Sentinel. It dials the
// proxy instead of the address that the proxy stands in front of, and other
// addresses directly:
//
//	proxy := redistest.NewProxy(t, cluster.NodeOf("key").Addr())
//	client := cluster.Client(func(o *redis.ClusterOptions) {
//		o.Dialer = redistest.Dialer(proxy)
//	})
func Dialer(proxies ...*Proxy) func(ctx context.Context, network, addr string) (net.Conn, error) {
	via := make(map[string]string)
	for _, p := range proxies {
		via[p.target] = p.addr
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if proxy, ok := via[addr]; ok {
			addr = proxy
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

// Addr returns the host and port at which the proxy listens.
func (p *Proxy) Addr() string { return p.addr }

// SwallowReply loses the reply to each of the next n request chunks that contain
// substr. The server executes the chunk; then the connection closes, without a
// byte of the reply. A second call replaces the first, and n = 0 ends it.
func (p *Proxy) SwallowReply(substr string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow = rule{[]byte(strings.ToLower(substr)), n}
}

// Swallowed returns how many replies [Proxy.SwallowReply] has lost. The server
// has executed those requests, and their clients know no earlier than this count.
func (p *Proxy) Swallowed() int64 { return p.swallowed.Load() }

// DropRequests loses each of the next n request chunks that contain substr: the
// server does not see it, and the connection closes. A second call replaces the
// first, and n = 0 ends it. A chunk that both faults wait for is dropped.
func (p *Proxy) DropRequests(substr string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = rule{[]byte(strings.ToLower(substr)), n}
}

// Dropped returns how many chunks [Proxy.DropRequests] has lost.
func (p *Proxy) Dropped() int64 { return p.dropped.Load() }

// RepeatRequests brings each of the next n request chunks that contain substr to
// the server twice: once more over a connection of its own, whose reply nobody
// reads, and then as it was sent. A second call replaces the first, and n = 0 ends
// it.
func (p *Proxy) RepeatRequests(substr string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repeat = rule{[]byte(strings.ToLower(substr)), n}
}

// Repeated returns how many chunks [Proxy.RepeatRequests] has repeated.
func (p *Proxy) Repeated() int64 { return p.repeated.Load() }

// sendOnce brings the chunk to the server, over a connection of its own, and
// returns when the server has said something to that.
func (p *Proxy) sendOnce(data []byte) {
	server, err := new(net.Dialer).DialContext(p.t.Context(), "tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	_ = server.SetDeadline(time.Now().Add(repeatLimit))
	if _, err := server.Write(data); err != nil {
		return
	}
	if _, err := server.Read(make([]byte, 1)); err == nil {
		p.repeated.Add(1)
	}
}

// repeatLimit bounds one repetition.
const repeatLimit = 5 * time.Second

// Delay makes every chunk of a reply arrive d later; 0 ends it. It is latency,
// not a limit of throughput: replies that follow each other closely arrive as
// closely.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Delayed returns how many chunks [Proxy.Delay] has put off.
func (p *Proxy) Delayed() int64 { return p.delayed.Load() }

// Hold makes the proxy a black hole, or ends it. While it holds, connections
// open, and nothing passes in either direction, not even their end. Afterwards
// everything passes that was sent meanwhile: requests of clients that gave up
// long ago reach the server late.
func (p *Proxy) Hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on == p.holding {
		return
	}
	p.holding = on
	if on {
		p.gate = make(chan struct{})
	} else {
		close(p.gate)
	}
}

// Held returns how many chunks, of requests and replies, arrived at the proxy
// while it held.
func (p *Proxy) Held() int64 { return p.held.Load() }

// HeldBytes returns how many bytes those chunks were: when it is all that a client
// has sent, nothing of it is in the client's system any more, and lost with it.
func (p *Proxy) HeldBytes() int64 { return p.heldBytes.Load() }

// Cut closes all current connections. What was on the way in them is lost.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
		p.cut.Add(1)
		delete(p.links, l) // not to be counted twice
	}
}

// CutConns returns how many connections [Proxy.Cut] has closed.
func (p *Proxy) CutConns() int64 { return p.cut.Load() }

// Refuse makes the system refuse new connections, as it does for a server that
// is down, or ends that. Current connections stay. The proxy cannot count what
// does not reach it: a client's error, syscall.ECONNREFUSED, is the proof.
func (p *Proxy) Refuse(on bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if on == (p.listener == nil) || p.closed {
		return
	}
	if on {
		_ = p.listener.Close()
		p.listener = nil
		return
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatalf("redistest: proxy: %v", err)
	}
	p.admit(listener)
}

// admit accepts connections from now on.
func (p *Proxy) admit(listener net.Listener) {
	p.listener = listener
	p.wg.Go(func() { p.accept(listener) })
}

// accept serves connections until the listener closes.
func (p *Proxy) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(conn.(*net.TCPConn)) })
	}
}

// serve forwards one connection until it ends.
func (p *Proxy) serve(client *net.TCPConn) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(p.t.Context(), "tcp", p.target)
	if err != nil {
		return
	}
	l := newLink(p, client, server.(*net.TCPConn))
	defer l.close()
	if p.add(l) {
		defer p.remove(l)
		l.run()
	}
}

// add makes the link known to Cut. It is false once the proxy is closed.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.links[l] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// close ends the proxy and waits for its goroutines.
func (p *Proxy) close() {
	p.Refuse(true)
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// fate is what happens to a request chunk.
type fate int

const (
	pass    fate = iota
	lose         // the request is lost
	swallow      // the reply is lost
	twice        // the request comes twice
)

// judge decides the fate of a request chunk and uses up the fault.
func (p *Proxy) judge(data []byte) fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	lower := bytes.ToLower(data)
	switch {
	case p.drop.take(lower):
		return lose
	case p.swallow.take(lower):
		return swallow
	case p.repeat.take(lower):
		return twice
	default:
		return pass
	}
}

// passage returns a channel that is closed when traffic may pass.
func (p *Proxy) passage() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gate
}

// noteArrival counts a chunk of n bytes that arrives while the proxy holds.
func (p *Proxy) noteArrival(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holding {
		p.held.Add(1)
		p.heldBytes.Add(int64(n))
	}
}

// latency returns the current delay of replies and counts its use.
func (p *Proxy) latency() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.delay > 0 {
		p.delayed.Add(1)
	}
	return p.delay
}
