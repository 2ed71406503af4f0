package redistest

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// Ports lie below the range that systems use for outgoing connections (32768 and up on
// Linux). So a killed server finds its port free when it restarts, and a client that
// dials it meanwhile cannot get the same port and reach itself. The nodes of a cluster
// talk to each other 10000 ports above, which is below that range too.
const (
	host      = "127.0.0.1"
	firstPort = 12768
	ports     = 10000
)

// tried counts the ports that this process has tried, in order, so that a server never
// gets the port of one that is down. It begins at random, because other processes do the
// same.
var (
	begin = rand.Int64N(ports)
	tried atomic.Int64
)

// reservePort returns a free port that this process gives out only once. Another
// process may still take it before the caller listens.
func reservePort(t testing.TB) int {
	t.Helper()
	listener := listen(t)
	_ = listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// listen is reservePort for callers that listen themselves.
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
