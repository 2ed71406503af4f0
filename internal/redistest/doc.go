// Package redistest starts real redis-server processes for tests and puts
// faults between a client and a server.
//
// # Servers
//
// [Start] runs one server, [StartReplicated] a primary with replicas, and [StartCluster] a
// cluster. Each returns when the whole set-up is ready: replicas are in sync, and all cluster
// nodes have met. The servers listen on loopback, keep their files in a directory of the test,
// and end with the test, on Linux even if the test binary is killed. A test never works with
// a server that it did not start.
//
// [Process.Pause], [Process.Kill] and [Server.Restart] are the faults of a
// process. [StartClocked] runs a server whose clock can be set. [Server.SetUser] adds a user. [Spawn] starts any other process.
//
// # Proxies
//
// A [Proxy] stands in front of one address and makes the faults of a network. The test
// arms faults and the proxy counts those that happen, so that a test can prove its fault:
//
//	proxy := redistest.NewProxy(t, server.Addr())
//	proxy.SwallowReply("evalsha", 1)
//	// ... the code under test, with a client of proxy.Addr() ...
//	require.Equal(t, int64(1), proxy.Swallowed())
//
// # Failures
//
// Helpers return no errors. A failure ends the test at once, by t.Fatal. Methods are safe
// for concurrent use, but t.Fatal stops only the goroutine that called.
//
// The package needs a Unix system and redis-server 7.0 or later.
package redistest
