// Package redistest starts real redis-server processes for tests and puts
// faults between a client and a server.
//
// # Servers
//
// [Start] runs one server, [StartReplicated] a primary with replicas,
// [StartSentinel] the Sentinels that watch them, and [StartCluster] a cluster.
// Each returns when the whole set-up is ready: replicas are in sync, every
// cluster node knows every other one. The servers listen on loopback, keep
// their files in a directory of the test, and end with the test, also when the
// test binary is killed (on Linux). A test never works with a server that it did
// not start.
//
// [Process.Pause], [Process.Kill] and [Daemon.Restart] are the faults of a
// process.
//
// [StartDaemon] starts a server of another kind, such as memcached, in the same way,
// and [Spawn] any process.
//
// [StartTLS] adds a port that speaks TLS, with an authority of its own, and
// [Server.SetUser] a user with the rights of an ACL line.
//
// # Proxies
//
// A [Proxy] stands in front of one address and makes the faults of a network:
// lost replies, lost requests, latency, cut connections, refused connections
// and a black hole. Faults are armed from the test and counted when they
// happen, so that a test can prove that it did test something:
//
//	proxy := redistest.NewProxy(t, server.Addr())
//	proxy.SwallowReply("evalsha", 1)
//	// ... the code under test, with a client of proxy.Addr() ...
//	require.Equal(t, int64(1), proxy.Swallowed())
//
// Clients that learn addresses from the servers, those of a cluster and of
// Sentinel, are led through proxies by [Dialer].
//
// # Failures
//
// Helpers do not return errors: what cannot be done fails the test at once, by
// t.Fatal. Their methods may be called by several goroutines, but an end by
// t.Fatal stops only the goroutine that called.
//
// The package needs a Unix system and redis-server 7.0 or later.
package redistest
