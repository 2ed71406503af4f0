package redistest

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// queued is how many chunks a direction may have on the way. When there are
// more, the sender has to wait.
const queued = 4096

// chunk is a piece of a stream on its way.
type chunk struct {
	data []byte
	due  time.Time // not to be written earlier
}

// link is one connection through a proxy.
//
// The server's end ends the link. A client that goes away does not: what it sent
// is delivered, as a real network would.
type link struct {
	proxy          *Proxy
	client, server *net.TCPConn
	done           chan struct{} // closed with both connections
	close          func()        // ends the link at once, however often it is called

	// mu is held while a chunk is judged and written to the server, so that
	// the end of a swallowing link's requests comes after that chunk.
	mu         sync.Mutex
	swallowing bool // replies are discarded from now on
	swallowed  bool // one was
}

func newLink(p *Proxy, client, server *net.TCPConn) *link {
	l := &link{proxy: p, client: client, server: server, done: make(chan struct{})}
	l.close = sync.OnceFunc(func() {
		close(l.done)
		_ = client.Close()
		_ = server.Close()
	})
	return l
}

// run forwards until the link ends.
func (l *link) run() {
	var wg sync.WaitGroup
	wg.Go(func() { l.pump(l.client, l.request, func() { _ = l.server.CloseWrite() }) })
	wg.Go(func() { l.pump(l.server, l.reply, l.endReplies) })
	wg.Wait()
}

// pump passes on what comes from one end, each chunk when it is due, then the end.
// It reads in one goroutine and writes in another, with a queue between, so that a
// chunk that is delayed or held does not keep later ones from being read: a delay
// adds up to no more than itself, and what a client sent before it gave up is kept.
func (l *link) pump(from *net.TCPConn, deliver func([]byte), end func()) {
	queue := make(chan chunk, queued)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(queue)
		for buf := make([]byte, 64<<10); ; {
			n, err := from.Read(buf)
			if n > 0 {
				select {
				case queue <- chunk{bytes.Clone(buf[:n]), l.proxy.arrived(n, from == l.server)}:
				case <-l.done:
				}
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
	wg.Wait()
}

// request brings one chunk to the server, or makes the fault that waits for it.
func (l *link) request(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.swallowing { // else the link is as good as dead
		switch l.proxy.judge(data) {
		case lose:
			l.proxy.dropped.Add(1)
			l.close()
			return
		case swallow:
			l.swallowing = true // before the server can reply
		}
	}
	// An error means that the server is gone, which the other direction sees too.
	_, _ = l.server.Write(data)
}

// reply brings a chunk to the client. One that is gone does not end the link: requests
// that it sent before may still be on the way.
func (l *link) reply(data []byte) {
	if !l.swallows() {
		_, _ = l.client.Write(data)
	}
}

// swallows reports whether replies are lost. This one may be that to an earlier request.
// A server closes when it has executed all that came before our end, so reading until
// then makes sure of execution.
func (l *link) swallows() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.swallowing {
		l.swallowed = true
		_ = l.server.CloseWrite()
	}
	return l.swallowing
}

func (l *link) endReplies() {
	if l.swallowed {
		l.proxy.swallowed.Add(1)
	}
	l.close()
}

// await returns when a chunk that is due at that time may pass, or false when
// the link has ended.
func (l *link) await(due time.Time) bool {
	if early := time.Until(due); early > 0 {
		select {
		case <-time.After(early):
		case <-l.done:
		}
	}
	if gate := l.proxy.passage(); gate != nil {
		select {
		case <-gate:
		case <-l.done:
		}
	}
	select { // both may have been so, and a dead link must not use up a fault
	case <-l.done:
		return false
	default:
		return true
	}
}
