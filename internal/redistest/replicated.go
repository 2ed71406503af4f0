package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// syncLimit is how long replicas may take to get in sync.
const syncLimit = 20 * time.Second

// Replicated is a primary and its replicas. The fields keep naming what
// [StartReplicated] set up, whatever is promoted later, unless the test sets them.
type Replicated struct {
	Primary  *Server
	Replicas []*Server
	t        testing.TB
}

// StartReplicated runs a primary and the given number of replicas and returns
// when they are in sync, so that a write reaches them all. It takes some 30 ms a
// replica, now and then a second more (see checkReplicas).
func StartReplicated(t testing.TB, replicas int) *Replicated {
	t.Helper()
	r := &Replicated{t: t, Primary: Start(t)}
	for range replicas {
		r.Replicas = append(r.Replicas, Start(t, "--replicaof", host, strconv.Itoa(r.Primary.port)))
		// One after the other: a replica that asks while another one is
		// being served would wait for the primary's next round, a second.
		r.AwaitSync()
	}
	return r
}

// AwaitSync returns when what the primary has been told has reached its replicas.
func (r *Replicated) AwaitSync() {
	r.t.Helper()
	poll(r.t, syncLimit, "replicate", func() error { return r.Primary.checkReplicas(len(r.Replicas)) })
}

// Promote makes replica i a primary of its own. The old primary and the other
// replicas are not told.
func (r *Replicated) Promote(i int) {
	r.t.Helper()
	r.Replicas[i].Do("replicaof", "no", "one")
}

// Link leads the replication of replica i through a proxy and returns when the
// replica is in sync again. While the proxy holds, the replica lags; to promote
// one that lost the primary's last writes:
//
//	link := r.Link(0)
//	link.Hold(true)
//	// ... writes that will be lost ...
//	r.Primary.Kill()
//	link.Cut()
//	r.Promote(0)
//
// Pausing the replica is not enough, for it reads what the primary sent
// meanwhile when it resumes. Sentinel would undo this, because the replica then
// names another address than that of its primary.
func (r *Replicated) Link(i int) *Proxy {
	r.t.Helper()
	proxy := NewProxy(r.t, r.Primary.Addr())
	r.Replicas[i].Do("replicaof", host, strings.TrimPrefix(proxy.Addr(), host+":"))
	r.AwaitSync()
	return proxy
}

// checkReplicas returns an error unless a write reaches n replicas. What INFO
// says is not enough: a primary shows a new replica as online, and may send it
// nothing until the replica's next report, a second later. The write is one that
// changes no data.
func (s *Server) checkReplicas(n int) error {
	s.t.Helper()
	ctx := context.Background()
	var wait *redis.Cmd // on the same connection, for it waits for its writes
	_, err := s.admin.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, "redistest", "in sync?")
		wait = p.Do(ctx, "wait", n, 50) // milliseconds
		return nil
	})
	if err != nil {
		return err
	}
	if reached, err := wait.Int(); err != nil || reached < n {
		return fmt.Errorf("a write reached %d of %d replicas (error: %v)", reached, n, err)
	}
	return nil
}
