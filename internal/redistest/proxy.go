package redistest

import (
	"bytes"
	"cmp"
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
// Faults for a command match request chunks. A chunk is what one read from a client's
// connection returns: a command of up to some kilobytes, or a pipeline or a part of it.
// The match ignores case and the protocol, so "eval" matches EVALSHA and a key of that
// name too. An empty text matches every chunk, even the greeting of a new connection.
//
// A fault hits the next n such chunks. A second call replaces the first, and n = 0 ends
// the fault. DropRequests takes precedence over SwallowReply.
//
// All methods are safe for concurrent use.
type Proxy struct {
	t    testing.TB
	addr string
	wg   sync.WaitGroup // of all goroutines

	mu             sync.Mutex // guards the fields below, except the counters
	target         string
	listener       net.Listener // nil while connections are refused
	links          map[*link]struct{}
	rules          [pass]rule
	unheard        int // messages to be lost
	refusesKeyless bool
	copies         copies
	delay          time.Duration
	gate           chan struct{} // closed when traffic may pass again; nil while it may

	swallowed, dropped, repeated, keyless, lost, delayed, held, cut, forgotten atomic.Int64
}

// locked calls do with p.mu held.
func (p *Proxy) locked(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// fate is what happens to a request chunk.
type fate int

const (
	lose    fate = iota // the request is lost
	swallow             // the reply is lost
	pass
)

// rule is a fault that waits for the next n chunks with a text.
type rule struct {
	text []byte // in lower case
	n    int
}

// NewProxy starts a proxy in front of the target, a host and port. The target need not be
// up, because the proxy dials it for each connection, and closes connections that it
// cannot serve. The proxy ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener := listen(t)
	p := &Proxy{t: t, target: target, addr: listener.Addr().String(), links: make(map[*link]struct{})}
	p.admit(listener)
	t.Cleanup(p.close)
	return p
}

// Dialer returns a dial function for clients that discover addresses, such as those of a
// cluster or of Sentinel. It dials a proxy in place of the proxy's target, and other
// addresses directly.
func Dialer(proxies ...*Proxy) func(ctx context.Context, network, addr string) (net.Conn, error) {
	via := make(map[string]string)
	for _, p := range proxies {
		p.locked(func() { via[p.target] = p.addr })
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, cmp.Or(via[addr], addr))
	}
}

// Addr returns the host and port at which the proxy listens.
func (p *Proxy) Addr() string { return p.addr }

// Lead cuts all connections and leads new ones to another target, as an operator does
// with a service's address when a primary has failed.
func (p *Proxy) Lead(target string) {
	p.locked(func() { p.target = target })
	p.Cut()
}

// SwallowReply loses the reply to each of the next n request chunks that contain
// substr. The server executes the chunk; then the connection closes, without a
// byte of the reply.
func (p *Proxy) SwallowReply(substr string, n int) { p.arm(swallow, substr, n) }

// Swallowed returns how many replies [Proxy.SwallowReply] has lost. It counts a reply
// after the server has executed the request and before the client can notice.
func (p *Proxy) Swallowed() int64 { return p.swallowed.Load() }

// DropRequests loses each of the next n request chunks that contain substr: the
// server does not see it, and the connection closes.
func (p *Proxy) DropRequests(substr string, n int) { p.arm(lose, substr, n) }

// Dropped returns how many chunks [Proxy.DropRequests] has lost.
func (p *Proxy) Dropped() int64 { return p.dropped.Load() }

// copies is the fault of [Proxy.Repeat].
type copies struct {
	of    func(chunk []byte) bool
	n     int
	later time.Duration
}

// Repeat delivers each of the next n request chunks for which of is true once more, so much
// later, over a connection of its own, and loses the reply to that. If the chunk itself is lost by
// another fault, it only comes late. of must be false for a part of a command; it must be quick.
func (p *Proxy) Repeat(of func(chunk []byte) bool, n int, later time.Duration) {
	p.locked(func() { p.copies = copies{of, n, later} })
}

// Repeated returns how many chunks of [Proxy.Repeat] the server has executed.
func (p *Proxy) Repeated() int64 { return p.repeated.Load() }

// copy delivers a chunk once more if that fault waits for it.
func (p *Proxy) copy(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.copies
	if c.n == 0 || !c.of(data) {
		return
	}
	c.n--
	later, target := time.NewTimer(c.later), p.target
	p.wg.Go(func() {
		select {
		case <-later.C:
			p.deliver(target, data)
		case <-p.t.Context().Done():
			later.Stop()
		}
	})
}

// deliver sends a chunk over a connection of its own, and counts it if the server has executed it.
func (p *Proxy) deliver(target string, data []byte) {
	conn, err := new(net.Dialer).DialContext(p.t.Context(), "tcp", target)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	defer context.AfterFunc(p.t.Context(), func() { _ = conn.Close() })()
	reply := make([]byte, 1)
	if _, err = conn.Write(data); err != nil {
		return
	}
	if _, err = conn.Read(reply); err == nil && reply[0] != '-' { // that is an error
		p.repeated.Add(1)
	}
}

// LoseMessages loses the next n pub/sub messages, and nothing else: a chunk of replies that
// holds some counts as one.
func (p *Proxy) LoseMessages(n int) { p.locked(func() { p.unheard = n }) }

// Lost returns how many messages [Proxy.LoseMessages] has lost.
func (p *Proxy) Lost() int64 { return p.lost.Load() }

// unheardOf reports whether a chunk of replies is lost because it is a message.
func (p *Proxy) unheardOf(data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unheard == 0 || !bytes.Contains(data, []byte("\r\nmessage\r\n")) {
		return false
	}
	p.unheard--
	p.lost.Add(1)
	return true
}

func (p *Proxy) arm(f fate, substr string, n int) {
	p.locked(func() { p.rules[f] = rule{[]byte(strings.ToLower(substr)), n} })
}

// judge decides the fate of a request chunk and uses up the fault.
func (p *Proxy) judge(data []byte) fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	data = bytes.ToLower(data)
	for f := range pass {
		if r := &p.rules[f]; r.n > 0 && bytes.Contains(data, r.text) {
			r.n--
			return f
		}
	}
	return pass
}

// Delay makes every chunk of a reply arrive d later; 0 ends that. Delay adds latency
// without limiting throughput, because replies keep their distances.
func (p *Proxy) Delay(d time.Duration) { p.locked(func() { p.delay = d }) }

// Delayed returns how many chunks [Proxy.Delay] has put off.
func (p *Proxy) Delayed() int64 { return p.delayed.Load() }

// Hold makes the proxy a black hole, or ends that. While it holds, connections open, but
// nothing passes in either direction, not even their end. Afterwards everything that was
// sent meanwhile passes, so that requests of clients that gave up reach the server late.
func (p *Proxy) Hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.gate == nil:
		p.gate = make(chan struct{})
	case !on && p.gate != nil:
		close(p.gate)
		p.gate = nil
	}
}

// Held returns how many chunks, of requests and replies, arrived at the proxy
// while it held.
func (p *Proxy) Held() int64 { return p.held.Load() }

// arrived counts a chunk and returns when it is due.
func (p *Proxy) arrived(isReply bool) (due time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate != nil {
		p.held.Add(1)
	}
	if isReply && p.delay > 0 {
		p.delayed.Add(1)
		return time.Now().Add(p.delay)
	}
	return due
}

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

// Forget makes the proxy a black hole for what comes over the present connections, from either end, for ever, and not even their
// end passes. New connections are as before. That is what a load balancer does with connections that were idle for too long.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.forgotten.Store(true)
	}
}

// Forgotten returns how many chunks came over connections that [Proxy.Forget] has forgotten.
func (p *Proxy) Forgotten() int64 { return p.forgotten.Load() }

// CutConns returns how many connections [Proxy.Cut] has closed.
func (p *Proxy) CutConns() int64 { return p.cut.Load() }

// Refuse makes the system refuse new connections, as it does for a server that
// is down, or ends that. Current connections stay. The proxy cannot count what
// does not reach it: a client's error, syscall.ECONNREFUSED, is the proof.
func (p *Proxy) Refuse(on bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if on == (p.listener == nil) {
		return
	}
	if on {
		_ = p.listener.Close()
		p.listener = nil
		return
	}
	listener, err := net.Listen("tcp", p.addr)
	check(p.t, err)
	p.admit(listener)
}

// Heal ends all faults. A chunk of [Proxy.Repeat] that is under way still comes.
func (p *Proxy) Heal() {
	p.t.Helper()
	p.locked(func() { p.rules, p.copies, p.delay, p.unheard = [pass]rule{}, copies{}, 0, 0 })
	p.RefuseKeyless(false)
	p.Hold(false)
	p.Refuse(false)
}

// admit accepts connections from now on, until the listener closes.
func (p *Proxy) admit(listener net.Listener) {
	p.listener = listener
	p.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(conn.(*net.TCPConn)) })
		}
	})
}

// serve forwards one connection until it ends, unless the proxy has changed its target
// meanwhile.
func (p *Proxy) serve(client *net.TCPConn) {
	defer client.Close()
	var target string
	p.locked(func() { target = p.target })
	server, err := new(net.Dialer).DialContext(p.t.Context(), "tcp", target)
	if err != nil {
		return
	}
	l := &link{proxy: p, client: client, server: server.(*net.TCPConn)}
	l.ctx, l.end = context.WithCancel(context.Background())
	defer l.close()
	p.locked(func() {
		p.links[l] = struct{}{}
		if p.target != target {
			l.close()
		}
	})
	p.wg.Go(func() { l.pump(l.client, l.request, func() { _ = l.server.CloseWrite() }) })
	l.pump(l.server, l.reply, l.endReplies) // until the link ends
	p.locked(func() { delete(p.links, l) })
}

// close ends the proxy and waits for its goroutines.
func (p *Proxy) close() {
	p.Refuse(true)
	p.Lead("") // nowhere, from now on
	p.wg.Wait()
}

// chunk is a piece of a stream on its way.
type chunk struct {
	data []byte
	due  time.Time // not to be written earlier
}

// link is one connection through a proxy.
//
// The link ends when the server closes. A client that closes does not end it, because its
// requests are still delivered, as by a real network.
type link struct {
	proxy          *Proxy
	client, server *net.TCPConn
	ctx            context.Context // ends with both connections
	end            func()

	forgotten  atomic.Bool // nothing passes any more
	swallowing atomic.Bool // replies are discarded from now on
	swallowed  bool        // a reply was; only the goroutine of replies uses it
}

// close ends the link at once, however often it is called.
func (l *link) close() {
	l.end()
	_ = l.client.Close()
	_ = l.server.Close()
}

// pump forwards the chunks from one end, each when it is due, and then the end itself. It
// reads in one goroutine and writes in another, with a queue between, so that it reads on
// while a chunk is delayed or held. So delays do not add up, and what a client sent
// before it gave up is kept.
func (l *link) pump(from *net.TCPConn, deliver func([]byte), end func()) {
	queue := make(chan chunk, 4096) // with more chunks in transit, the sender has to wait
	l.proxy.wg.Go(func() {
		defer close(queue)
		for buf := make([]byte, 64<<10); ; {
			n, err := from.Read(buf)
			if n > 0 {
				queue <- chunk{bytes.Clone(buf[:n]), l.proxy.arrived(from == l.server)}
			}
			if err != nil {
				return
			}
		}
	})
	for c := range queue {
		if l.await(c.due) {
			deliver(c.data)
		}
	}
	l.await(time.Time{}) // a link that is held does not show its end
	end()
}

// request delivers one chunk to the server, or makes the fault that waits for it. A chunk
// whose reply will be lost is the last of its link: the server closes after executing all
// that came before our end, so reading until it closes ensures execution.
func (l *link) request(data []byte) {
	if l.forgotten.Load() {
		l.proxy.forgotten.Add(1)
		return
	}
	if l.swallowing.Load() {
		return
	}
	l.proxy.copy(data)
	switch l.proxy.judge(data) {
	case lose:
		l.proxy.dropped.Add(1)
		l.close()
		return
	case swallow:
		l.swallowing.Store(true) // before the server can reply
		defer l.server.CloseWrite()
	}
	_, _ = l.server.Write(l.proxy.withoutKeyless(data)) // if the server is gone, the other direction sees it too
}

// reply delivers a chunk to the client, or loses it, even if it belongs to the reply to
// an earlier request. A failed write to the client does not end the link, because earlier
// requests may still be in transit.
func (l *link) reply(data []byte) {
	if l.swallowed = l.swallowing.Load(); !l.swallowed && !l.proxy.unheardOf(data) {
		_, _ = l.client.Write(data)
	}
}

func (l *link) endReplies() {
	if l.swallowed {
		l.proxy.swallowed.Add(1)
	}
	l.close()
}

// await waits until a chunk that is due at that time may pass. It returns false if the
// link has ended.
func (l *link) await(due time.Time) bool {
	if early := time.Until(due); early > 0 {
		select {
		case <-time.After(early):
		case <-l.ctx.Done():
		}
	}
	var gate <-chan struct{}
	l.proxy.locked(func() { gate = l.proxy.gate })
	if gate != nil {
		select {
		case <-gate:
		case <-l.ctx.Done():
		}
	}
	return l.ctx.Err() == nil // select may have chosen the other case, and a dead link must not use up a fault
}
