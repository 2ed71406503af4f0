package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Replicated is a primary and its replicas. A promotion does not change the fields; a
// test may set them.
type Replicated struct {
	Primary  *Server
	Replicas []*Server
	t        testing.TB
}

// StartReplicated runs a primary and the given number of replicas and returns when they
// are in sync, so that a write reaches them all. It takes some 30 ms for each replica,
// and sometimes a second more (see checkReplicas).
func StartReplicated(t testing.TB, replicas int) *Replicated {
	t.Helper()
	r := &Replicated{t: t, Primary: Start(t)}
	for range replicas {
		r.Replicas = append(r.Replicas, Start(t, "--replicaof", host, strconv.Itoa(r.Primary.port)))
		// One after the other, because a replica that asks while the primary serves
		// another one waits a second for the next round.
		r.AwaitSync()
	}
	return r
}

// AwaitSync returns when all writes to the primary have reached its replicas.
func (r *Replicated) AwaitSync() {
	r.t.Helper()
	poll(r.t, patience, "replicate", func() error { return r.Primary.checkReplicas(len(r.Replicas)) })
}

// Promote makes replica i a primary of its own. The old primary and the other replicas
// keep their roles.
func (r *Replicated) Promote(i int) {
	r.t.Helper()
	r.Replicas[i].Do("replicaof", "no", "one")
}

// Link leads the replication of replica i through a proxy and returns when the replica is
// in sync again. While the proxy holds, the replica lags. This promotes a replica without
// the primary's last writes:
//
//	link := r.Link(0)
//	link.Hold(true)
//	// ... writes that will be lost ...
//	r.Primary.Kill()
//	link.Cut()
//	r.Promote(0)
//
// Pausing the replica is not enough, because after Resume it reads what the primary sent
// meanwhile. Sentinel would undo Link, because the replica then reports another address
// for its primary.
func (r *Replicated) Link(i int) *Proxy {
	r.t.Helper()
	proxy := NewProxy(r.t, r.Primary.Addr())
	r.Replicas[i].Do("replicaof", host, strings.TrimPrefix(proxy.Addr(), host+":"))
	r.AwaitSync()
	return proxy
}

// checkReplicas returns an error unless a write reaches n replicas. INFO is not enough,
// because a primary shows a new replica as online but may send it nothing until the
// replica's next report, a second later. The write changes no data.
func (s *Server) checkReplicas(n int) error {
	s.t.Helper()
	ctx := context.Background()
	replies, err := s.admin.Pipelined(ctx, func(p redis.Pipeliner) error { // on one connection, whose writes WAIT is for
		p.Publish(ctx, "redistest", "in sync?")
		p.Do(ctx, "wait", n, 50) // milliseconds
		return nil
	})
	if err != nil {
		return err
	}
	if reached := replies[1].(*redis.Cmd).Val().(int64); reached < int64(n) {
		return fmt.Errorf("a write reached %d of %d replicas", reached, n)
	}
	return nil
}

// sentinelConfig takes the port, the directory, the master's name and port, and the
// quorum. The times are short, for tests that wait for a failover, and long
// enough for a busy machine not to cause one.
const sentinelConfig = `
bind 127.0.0.1
port %d
dir %q
protected-mode no
sentinel monitor %[3]s 127.0.0.1 %[4]d %[5]d
sentinel down-after-milliseconds %[3]s 1000
sentinel failover-timeout %[3]s 3000
`

// Sentinel is a group of Sentinel processes that watch a [Replicated]. They
// promote a replica some two to four seconds after the primary is gone.
type Sentinel struct {
	Sentinels  []*Server
	MasterName string

	watched *Replicated
}

// StartSentinel runs the given number of Sentinels, and returns when they have found the
// replicas and each other. One is enough to fail over. A majority of them decides that
// the primary is down.
func StartSentinel(t testing.TB, r *Replicated, sentinels int) *Sentinel {
	t.Helper()
	s := &Sentinel{MasterName: "mymaster", watched: r}
	for range sentinels {
		s.Sentinels = append(s.Sentinels, launch(t, func(dir string, port int) []string {
			path := filepath.Join(dir, "sentinel.conf") // a Sentinel keeps its state there
			config := fmt.Sprintf(sentinelConfig, port, dir, s.MasterName, r.Primary.port, sentinels/2+1)
			check(t, os.WriteFile(path, []byte(config), 0o600))
			return []string{path, "--sentinel"}
		}))
	}
	for _, one := range s.Sentinels {
		poll(t, patience, "watch by "+one.Addr(), func() error {
			// master0:name=mymaster,status=ok,address=127.0.0.1:6379,slaves=1,sentinels=1
			got := one.info("Sentinel")["master0"]
			want := fmt.Sprintf("status=ok,address=%s,slaves=%d,sentinels=%d", r.Primary.Addr(), len(r.Replicas), sentinels)
			if !strings.HasSuffix(got, want) {
				return fmt.Errorf("it sees %q, not %q", got, want)
			}
			return nil
		})
	}
	return s
}

// Primary returns the server that the Sentinels name as the primary, which changes with a
// failover. It asks the first Sentinel that is up.
func (s *Sentinel) Primary() *Server {
	s.watched.t.Helper()
	up := slices.IndexFunc(s.Sentinels, func(one *Server) bool { return one.Up() })
	addr, _ := s.Sentinels[max(up, 0)].Do("sentinel", "get-master-addr-by-name", s.MasterName).StringSlice()
	for _, server := range slices.Concat([]*Server{s.watched.Primary}, s.watched.Replicas) {
		if strings.Join(addr, ":") == server.Addr() {
			return server
		}
	}
	s.watched.t.Fatalf("redistest: the Sentinels name %q, which is not ours", addr)
	return nil
}

// FailoverClient returns a client that asks the Sentinels for the primary and
// follows a failover. It is closed when the test ends; opts may change its
// options.
func (s *Sentinel) FailoverClient(opts ...func(*redis.FailoverOptions)) *redis.Client {
	options := &redis.FailoverOptions{MasterName: s.MasterName}
	for _, one := range s.Sentinels {
		options.SentinelAddrs = append(options.SentinelAddrs, one.Addr())
	}
	return newClient(s.watched.t, redis.NewFailoverClient, options, opts)
}
