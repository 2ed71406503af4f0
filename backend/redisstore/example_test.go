package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// startRedis starts a server for an example, in place of one that you have.
func startRedis(args ...string) (addr string, stop func()) {
	t, stop := redistest.Example()
	return redistest.Start(t, args...).Addr(), stop
}

// newClient returns a client with the settings of Options, except for longer timeouts,
// because a machine that runs examples may be slow.
func newClient(addr string) redis.UniversalClient {
	o, err := redisstore.Options("redis://" + addr)
	must(err)
	o.DialTimeout, o.ReadTimeout = time.Second, time.Second
	return redis.NewUniversalClient(o)
}

// must panics on an error that only a wrong set-up of an example causes.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// allow asks a limiter over store for a token. Its fetch timeout is long, because a machine
// that runs examples may be slow.
func allow(store *redisstore.Store, opts ...reservoir.Option) (reservoir.Result, error) {
	limiter, err := reservoir.New(store, reservoir.PerHour(100), append(opts, reservoir.WithFetchTimeout(5*time.Second))...)
	must(err)
	defer limiter.Close(context.Background())
	return limiter.Allow(context.Background(), "user:42")
}

// Open makes a store from a URL. Close it after the limiter.
func ExampleOpen() {
	addr, stop := startRedis()
	defer stop()
	store, err := redisstore.Open("redis://"+addr, redisstore.WithPrefix("api:"))
	must(err)
	defer store.Close()
	r, err := allow(store)
	fmt.Println(r.Allowed, err)
	_, err = redisstore.Open("redis://:secret%@host")
	fmt.Println(strings.Contains(err.Error(), "secret"))
	// Output:
	// true <nil>
	// false
}

// Change the options before you make the client.
func ExampleOptions() {
	o, err := redisstore.Options("rediss-cluster://limiter:secret@10.0.0.1?addr=10.0.0.2:6379")
	must(err)
	o.PoolSize = 50
	client := redis.NewUniversalClient(o)
	defer client.Close()
	fmt.Println(redisstore.New(client).Err(), o.Addrs, o.ReadTimeout)
	// Output: <nil> [10.0.0.1:6379 10.0.0.2:6379] 2s
}

// This is GitHub's layout: keys are spread over primaries, each with replicas for Check.
func ExampleOpenShards() {
	store, err := redisstore.OpenShards(map[string][]string{
		"a": {"redis://10.0.0.1", "redis://10.0.0.2"}, // the primary, then its replicas
		"b": {"redis://10.0.1.1", "redis://10.0.1.2"},
	})
	must(err)
	defer store.Close()
	fmt.Println(store.Shard("user:42"), store.Shard("user:43"))
	// Output: a b
}

// A limited key has three keys in Redis.
func ExampleNew() {
	addr, stop := startRedis()
	defer stop()
	client := newClient(addr)
	defer client.Close() // after the limiter
	store := redisstore.New(client, redisstore.WithPrefix("api:"))
	r, err := allow(store)
	fmt.Println(r.Allowed, err)

	keys, err := client.Keys(context.Background(), "*").Result()
	must(err)
	slices.Sort(keys)
	fmt.Println(keys)
	fmt.Println(client.Get(context.Background(), "api:{user:42}:3600s").Val(), "charged")
	// Output:
	// true <nil>
	// [api:{user:42}:3600s api:{user:42}:3600s:exp api:{user:42}:3600s:own]
	// 1 charged
}

// Replicas answer Check; the primary decides requests.
func ExampleWithReplicas() {
	primary, stopPrimary := startRedis()
	defer stopPrimary()
	replica, stopReplica := startRedis() // in a service a replica of the primary; this one is empty
	defer stopReplica()
	one, two := newClient(primary), newClient(replica)
	defer one.Close()
	defer two.Close()

	limiter, err := reservoir.New(redisstore.New(one, redisstore.WithReplicas(two)), reservoir.PerHour(100),
		reservoir.WithDirect(), reservoir.WithFetchTimeout(5*time.Second))
	must(err)
	defer limiter.Close(context.Background())
	r, err := limiter.Allow(context.Background(), "user:42")
	fmt.Println(r.Remaining, err)
	r, err = limiter.Check(context.Background(), "user:42")
	fmt.Println(r.Remaining, err) // replicas lag
	// Output:
	// 99 <nil>
	// 100 <nil>
}

// Without a replica the server grants nothing, because a failover could forget it.
func ExampleWithReplicaAck() {
	addr, stop := startRedis()
	defer stop()
	client := newClient(addr)
	defer client.Close()
	store := redisstore.New(client, redisstore.WithReplicaAck(1, 20*time.Millisecond))
	_, err := allow(store, reservoir.WithDirect())
	fmt.Println(errors.Is(err, redisstore.ErrNotReplicated))
	// Output: true
}

// A program that would rather not start than run with a faulty server.
func ExampleStore_Verify() {
	addr, stop := startRedis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	defer stop()
	client := newClient(addr)
	defer client.Close()
	err := redisstore.New(client).Verify(context.Background())
	fmt.Println(err, errors.Is(err, redisstore.ErrUnverified))
	// Output:
	// reservoir: verify: store rejected: maxmemory is 104857600 bytes with maxmemory-policy allkeys-lru, so the server may evict open windows, which gives their keys a second limit: use noeviction false
}

// A master of a cluster dies, and its replica takes over. Meanwhile only the dead master's
// keys get the answer of the failure policy.
func Example_clusterFailover() {
	ctx := context.Background()
	t, stop := redistest.Example()
	defer stop()
	cluster := redistest.StartCluster(t, 3, 1) // a service has its cluster
	for _, node := range cluster.Nodes {       // so that masters serve their keys while another one is away
		node.Do("config", "set", "cluster-require-full-coverage", "no")
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()[:3], DialerRetries: 1}) // some nodes; they know the others
	defer client.Close()
	limiter, err := reservoir.New(redisstore.New(client), reservoir.PerHour(100),
		reservoir.WithFailLocal(0.1), // a tenth of the limit per process
		reservoir.WithFixedBatch(1),  // no stock, so that the figures are the same in each run
		reservoir.WithFetchTimeout(5*time.Second))
	must(err)
	defer limiter.Close(ctx)

	request := func() (byStore, byPolicy int) {
		for range 60 {
			r, err := limiter.Allow(ctx, "user:anna")
			must(err)
			switch {
			case r.Allowed && r.Source == reservoir.Fallback:
				byPolicy++
			case r.Allowed:
				byStore++
			}
		}
		return byStore, byPolicy
	}
	fmt.Println(request())
	cluster.NodeOf("{user:anna}").Kill()
	fmt.Println(request())
	for { // until the replica answers; a request for the whole limit is admitted by neither
		r, err := limiter.AllowN(ctx, "user:anna", 100)
		must(err)
		if r.Source != reservoir.Fallback {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println(request()) // what the policy admitted is never charged: Stats calls it Overdrawn
	// Output:
	// 60 0
	// 0 10
	// 40 0
}

// Err reports faults of the set-up before the first call. reservoir.New reports them too.
func ExampleStore_Err() {
	client := newClient("localhost:6379")
	defer client.Close()
	fmt.Println(redisstore.New(nil).Err() != nil)
	fmt.Println(redisstore.New(client, redisstore.WithPrefix("{api}")).Err() != nil)
	fmt.Println(redisstore.New(client, redisstore.WithPrefix("api:")).Err())
	// Output:
	// true
	// true
	// <nil>
}

// In a cluster a key's shard is its master, once a call has been served. A single server
// has no shards.
func ExampleStore_Shard() {
	client := newClient("localhost:6379")
	defer client.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.0.1:6379", "10.0.0.2:6379"}})
	defer cluster.Close()
	fmt.Printf("%q\n", redisstore.New(client).Shard("user:42"))
	fmt.Printf("%q\n", redisstore.New(cluster).Shard("user:42"))
	// Output:
	// ""
	// ""
}
