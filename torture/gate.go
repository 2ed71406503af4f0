package torture

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// gate forwards connections to an address that can be changed: what an operator
// does to a service's address when a primary has failed.
type gate struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex // guards what follows
	target string
	conns  map[net.Conn]struct{}
	closed bool
}

func newGate(t testing.TB, target string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{listener: listener, target: target, conns: make(map[net.Conn]struct{})}
	g.wg.Go(g.accept)
	t.Cleanup(g.close)
	return g
}

func (g *gate) addr() string { return g.listener.Addr().String() }

// lead sends new connections to target and closes the present ones.
func (g *gate) lead(target string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.target = target
	for c := range g.conns {
		_ = c.Close()
	}
}

func (g *gate) close() {
	_ = g.listener.Close()
	g.lead("")
	g.mu.Lock()
	g.closed = true
	for c := range g.conns {
		_ = c.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
}

func (g *gate) accept() {
	for {
		conn, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.wg.Go(func() { g.serve(conn) })
	}
}

func (g *gate) serve(client net.Conn) {
	defer client.Close()
	g.mu.Lock()
	target := g.target
	g.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	if !g.add(target, client, server) {
		return
	}
	defer g.remove(client, server)
	var wg sync.WaitGroup
	wg.Go(func() { forward(server, client) })
	wg.Go(func() { forward(client, server) })
	wg.Wait()
}

// forward copies one direction up to its end, which it passes on.
func forward(to, from net.Conn) {
	_, _ = io.Copy(to, from) // whatever ended it, the other side is told
	_ = to.(*net.TCPConn).CloseWrite()
}

// add makes the connections known to lead, unless it has led away meanwhile.
func (g *gate) add(target string, conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || target != g.target {
		return false
	}
	for _, c := range conns {
		g.conns[c] = struct{}{}
	}
	return true
}

func (g *gate) remove(conns ...net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		delete(g.conns, c)
	}
}
