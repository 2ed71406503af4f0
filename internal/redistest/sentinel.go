package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentinelLimit is how long Sentinels may take to find the replicas and each
// other. They announce themselves every two seconds.
const sentinelLimit = 30 * time.Second

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

	t       testing.TB
	watched *Replicated
}

// StartSentinel runs the given number of Sentinels, one is enough to fail over,
// and returns when they know the replicas and each other. A majority of them
// decides that the primary is down.
func StartSentinel(t testing.TB, r *Replicated, sentinels int) *Sentinel {
	t.Helper()
	s := &Sentinel{MasterName: "mymaster", t: t, watched: r}
	for range sentinels {
		s.Sentinels = append(s.Sentinels, launch(t, func(dir string, port int) []string {
			path := filepath.Join(dir, "sentinel.conf") // a Sentinel keeps its state there
			config := fmt.Sprintf(sentinelConfig, port, dir, s.MasterName, r.Primary.port, sentinels/2+1)
			check(t, os.WriteFile(path, []byte(config), 0o600))
			return []string{path, "--sentinel"}
		}))
	}
	for _, one := range s.Sentinels {
		poll(t, sentinelLimit, "watch by "+one.Addr(), func() error {
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

// Primary returns the server that the Sentinels name as the primary: another
// one once they have failed over. It asks the first Sentinel that is up.
func (s *Sentinel) Primary() *Server {
	s.t.Helper()
	up := slices.IndexFunc(s.Sentinels, func(one *Server) bool { return one.Up() })
	addr, _ := s.Sentinels[max(up, 0)].Do("sentinel", "get-master-addr-by-name", s.MasterName).StringSlice()
	for _, server := range slices.Concat([]*Server{s.watched.Primary}, s.watched.Replicas) {
		if strings.Join(addr, ":") == server.Addr() {
			return server
		}
	}
	s.t.Fatalf("redistest: the Sentinels name %q, which is not ours", addr)
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
	return newClient(s.t, redis.NewFailoverClient, options, opts)
}
