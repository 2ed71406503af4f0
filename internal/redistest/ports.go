package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Ports are taken from below the range from which systems pick the local ports
// of outgoing connections (32768 and up on Linux). A server that was killed
// thus finds its port free when it comes back, and a client that dials it
// meanwhile cannot be given that same port and reach itself.
const (
	firstPort = 20000
	lastPort  = 32767
)

// reserved holds the ports given out by this process, so that the port of a
// server that is down is not given to another one.
var reserved = struct {
	sync.Mutex
	ports map[int]bool
}{ports: make(map[int]bool)}

// reservePort returns a free port which is the caller's until the test ends.
// Another process may still take it before the caller listens.
func reservePort(t testing.TB) int {
	t.Helper()
	listener := listen(t)
	_ = listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// listen is reservePort for those who listen themselves.
func listen(t testing.TB) net.Listener {
	t.Helper()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if listener := claim(port); listener != nil {
			t.Cleanup(func() { release(port) })
			return listener
		}
	}
	t.Fatalf("redistest: no free port between %d and %d", firstPort, lastPort)
	return nil
}

// claim reserves the port, unless it is in use, here or by another process.
func claim(port int) net.Listener {
	reserved.Lock()
	defer reserved.Unlock()
	if reserved.ports[port] {
		return nil
	}
	listener, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return nil
	}
	reserved.ports[port] = true
	return listener
}

func release(port int) {
	reserved.Lock()
	defer reserved.Unlock()
	delete(reserved.ports, port)
}

// loopback returns the address of a port on this machine.
func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// splitAddr returns the host and the port of a server's address.
func splitAddr(addr string) (host, port string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic(fmt.Sprintf("redistest: %v", err)) // we built it with loopback
	}
	return host, port
}
