package redistest

import (
	"context"
	"fmt"
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
