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
// process. [StartTLS] adds a port that speaks TLS, [Server.SetUser] a user.
// [StartDaemon] starts a server of another kind, and [Spawn] any process.
//
// # Proxies
//
// A [Proxy] stands in front of one address and makes the faults of a network.
// They are armed from the test and counted when they happen, so that a test can
// prove that it did test something:
//
//	proxy := redistest.NewProxy(t, server.Addr())
//	proxy.SwallowReply("evalsha", 1)
//	// ... the code under test, with a client of proxy.Addr() ...
//	require.Equal(t, int64(1), proxy.Swallowed())
//
// # Failures
//
// Helpers do not return errors: what cannot be done fails the test at once, by
// t.Fatal. Their methods may be called by several goroutines, but an end by
// t.Fatal stops only the goroutine that called.
//
// The package needs a Unix system and redis-server 7.0 or later.
package redistest
