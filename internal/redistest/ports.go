package redistest

import (
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
	host      = "127.0.0.1"
	firstPort = 20000
	lastPort  = 32767
)

// reserved holds the ports given out by this process, so that the port of a
// server that is down is not given to another one.
var reserved sync.Map

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
		if _, taken := reserved.LoadOrStore(port, true); taken {
			continue
		}
		if listener, err := net.Listen("tcp", loopback(port)); err == nil {
			t.Cleanup(func() { reserved.Delete(port) })
			return listener
		}
		reserved.Delete(port) // another process has it
	}
	t.Fatalf("redistest: no free port between %d and %d", firstPort, lastPort)
	return nil
}

// loopback returns the address of a port on this machine.
func loopback(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
