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

// link is one connection through a proxy. Each direction has a goroutine that
// reads chunks and one that writes them, with a queue between, so that a chunk
// that is delayed or held does not keep later ones from being read: a delay adds
// up to no more than itself, and what a client sent before it gave up is kept.
//
// The server's end ends the link. A client that goes away does not: what it sent
// is delivered, as a real network would.
type link struct {
	proxy          *Proxy
	client, server *net.TCPConn
	done           chan struct{} // closed with both connections
	once           sync.Once

	// mu is held while a chunk is judged and written to the server, so that
	// the end of a swallowing link's requests comes after that chunk.
	mu         sync.Mutex
	swallowing bool // replies are discarded from now on
}

func newLink(p *Proxy, client, server *net.TCPConn) *link {
	return &link{proxy: p, client: client, server: server, done: make(chan struct{})}
}

// run forwards until the link ends.
func (l *link) run() {
	requests, replies := make(chan chunk, queued), make(chan chunk, queued)
	var wg sync.WaitGroup
	wg.Go(func() { l.readRequests(requests) })
	wg.Go(func() { l.writeRequests(requests) })
	wg.Go(func() { l.readReplies(replies) })
	wg.Go(func() { l.writeReplies(replies) })
	wg.Wait()
}

// close ends the link at once. It may be called more than once.
func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

func (l *link) readRequests(queue chan<- chunk) {
	defer close(queue)
	l.read(l.client, func(data []byte) {
		l.push(queue, chunk{data: data})
	})
}

// writeRequests delivers what the client sent, then its end.
func (l *link) writeRequests(queue <-chan chunk) {
	for c := range queue {
		if !l.await(c.due) {
			return
		}
		l.request(c.data)
	}
	l.endRequests()
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
		case twice:
			l.proxy.sendOnce(data)
		}
	}
	// An error means that the server is gone, which readReplies sees too.
	_, _ = l.server.Write(data)
}

// endRequests tells the server that no more will come.
func (l *link) endRequests() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.server.CloseWrite()
}

func (l *link) readReplies(queue chan<- chunk) {
	defer close(queue)
	swallowed := false
	l.read(l.server, func(data []byte) {
		switch {
		case !l.discards():
			l.push(queue, chunk{data, time.Now().Add(l.proxy.latency())})
		case !swallowed:
			swallowed = true
			// This may be the reply to an earlier request. A server
			// closes when it has executed all that came before our
			// end, so reading until then makes sure of execution.
			l.endRequests()
		}
	})
	if swallowed {
		l.proxy.swallowed.Add(1)
	}
}

// discards reports whether replies are to be lost from now on.
func (l *link) discards() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.swallowing
}

// writeReplies delivers what the server sent, then its end.
func (l *link) writeReplies(queue <-chan chunk) {
	defer l.close()
	for c := range queue {
		if !l.await(c.due) {
			return
		}
		// A client that is gone does not end the link: requests that
		// it sent before may still be on the way.
		_, _ = l.client.Write(c.data)
	}
	l.await(time.Time{}) // a held link does not show the server's end
}

// read calls take with each chunk that conn delivers, until its end.
func (l *link) read(conn *net.TCPConn, take func(data []byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			l.proxy.noteArrival(n)
			take(bytes.Clone(buf[:n]))
		}
		if err != nil {
			return
		}
	}
}

// push puts the chunk on its way, unless the link has ended.
func (l *link) push(queue chan<- chunk, c chunk) {
	select {
	case queue <- c:
	case <-l.done:
	}
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
	select {
	case <-l.proxy.passage():
	case <-l.done:
	}
	select { // both may have been so, and a dead link must not use up a fault
	case <-l.done:
		return false
	default:
		return true
	}
}
