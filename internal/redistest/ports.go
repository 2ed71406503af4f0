package redistest

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// Ports are taken from below the range from which systems pick the local ports
// of outgoing connections (32768 and up on Linux). A server that was killed
// thus finds its port free when it comes back, and a client that dials it
// meanwhile cannot be given that same port and reach itself. A cluster's nodes
// talk among themselves 10000 ports above, which is below that range too.
const (
	host      = "127.0.0.1"
	firstPort = 12768
	ports     = 10000
)

// tried counts the ports that this process has looked at, one after the other, so that
// the port of a server that is down is not given to another one. It begins anywhere,
// because other processes do the same.
var (
	begin = rand.Int64N(ports)
	tried atomic.Int64
)

// reservePort returns a free port that this process gives to nobody else. Another one
// may still take it before the caller listens.
func reservePort(t testing.TB) int {
	t.Helper()
	listener := listen(t)
	_ = listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// listen is reservePort for those who listen themselves.
func listen(t testing.TB) net.Listener {
	t.Helper()
	for range ports {
		port := firstPort + int((begin+tried.Add(1))%ports)
		if listener, err := net.Listen("tcp", loopback(port)); err == nil {
			return listener
		}
	}
	t.Fatalf("redistest: no free port from %d on", firstPort)
	return nil
}

// loopback returns the address of a port on this machine.
func loopback(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
