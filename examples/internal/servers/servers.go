// Package servers starts redis-servers on loopback for the examples. A service has its
// servers elsewhere and needs nothing from here.
package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// Main is the main function of an example, which keeps its servers' files in dir until it
// ends. An interrupt or SIGTERM ends ctx.
func Main(name string, run func(ctx context.Context, dir string, out io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	logging.Disable() // go-redis would log each attempt to reach a stopped server
	dir, err := os.MkdirTemp("", name)
	if err == nil {
		err = errors.Join(run(ctx, dir, os.Stdout), os.RemoveAll(dir))
	}
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Cluster is three masters with a replica each.
type Cluster struct {
	Masters []string // addresses
	nodes   []*Server
}

// StartCluster starts a [Cluster] in dir, and returns when it can serve and fail over.
func StartCluster(ctx context.Context, dir string) (c *Cluster, err error) {
	c = &Cluster{}
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()
	create := []string{"--cluster", "create", "--cluster-replicas", "1", "--cluster-yes"}
	for i := range 6 {
		n, err := start(ctx, filepath.Join(dir, strconv.Itoa(i)),
			"--cluster-enabled", "yes",
			"--cluster-require-full-coverage", "no", // or all keys are refused while one master is away
			"--cluster-node-timeout", "3000") // milliseconds of silence until a master is held to be down
		if err != nil {
			return c, err
		}
		c.nodes, create = append(c.nodes, n), append(create, n.Addr)
	}
	c.Masters = create[5:8]
	if text, err := exec.CommandContext(ctx, "redis-cli", create...).CombinedOutput(); err != nil {
		return c, fmt.Errorf("redis-cli: %w\n%s", err, text)
	}
	for _, n := range c.nodes {
		if err := n.join(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Kill kills the node at addr, as a crash would.
func (c *Cluster) Kill(addr string) {
	for _, n := range c.nodes {
		if n.Addr == addr {
			n.Stop()
		}
	}
}

// Stop kills all nodes.
func (c *Cluster) Stop() {
	for _, n := range c.nodes {
		n.Stop()
	}
}

// linked matches the state of a master that has a replica in sync, and of such a replica.
var linked = regexp.MustCompile(`state=online|master_link_status:up`)

// join waits until the node reports that the cluster can serve and fail over.
func (s *Server) join(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer client.Close()
	for {
		state, _ := client.ClusterInfo(ctx).Result()
		role, _ := client.Info(ctx, "replication").Result()
		if strings.Contains(state, "cluster_state:ok") && linked.MatchString(role) {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Pair is the two servers of a shard. In production they run on two machines, and Sentinel
// watches them.
type Pair struct{ Primary, Replica *Server }

// StartPair starts a [Pair] in dir, and returns when the replica has all data.
func StartPair(ctx context.Context, dir string) (*Pair, error) {
	primary, err := start(ctx, filepath.Join(dir, "primary"), "--repl-diskless-sync-delay", "0")
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(primary.Addr)
	replica, err := start(ctx, filepath.Join(dir, "replica"), "--replicaof", host+" "+port)
	if err != nil {
		primary.Stop()
		return nil, err
	}
	p := &Pair{primary, replica}
	if err := p.Settle(ctx); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// Stop kills both servers.
func (p *Pair) Stop() {
	p.Replica.Stop()
	p.Primary.Stop()
}

// Settle returns when the replica has all data of the primary, or at once if the primary is
// stopped. It fails if that takes ten seconds.
func (p *Pair) Settle(ctx context.Context) error {
	select {
	case <-p.Primary.exited:
		return nil
	default:
	}
	client := redis.NewClient(&redis.Options{Addr: p.Primary.Addr, ReadTimeout: 20 * time.Second})
	defer client.Close()
	var replicas *redis.Cmd
	_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Ping(ctx) // WAIT counts from the connection's last command
		replicas = pipe.Do(ctx, "wait", 1, 10_000)
		return nil
	})
	if err == nil && replicas.Val() == int64(0) {
		err = errors.New("the replica lags")
	}
	return err
}

// Server is a redis-server that keeps nothing on disk.
type Server struct {
	Addr   string
	dir    string
	args   []string
	cmd    *exec.Cmd
	exited chan struct{}
}

// start starts a server on a free port. It tries up to ten ports, because another program
// may use one.
func start(ctx context.Context, dir string, args ...string) (s *Server, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for range 10 {
		s = &Server{dir: dir, args: args, Addr: "127.0.0.1:" + strconv.Itoa(10_000+rand.IntN(10_000))}
		if err = s.Start(ctx); err == nil || ctx.Err() != nil {
			return s, err
		}
	}
	return nil, err
}

// Start starts the server, also after Stop, and returns when it is ready for commands.
func (s *Server) Start(ctx context.Context) error {
	_, port, _ := net.SplitHostPort(s.Addr)
	s.cmd = exec.Command("redis-server", append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", s.dir, "--save", ""}, s.args...)...)
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("%w: is redis-server installed?", err)
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(s.cmd, s.exited)
	client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer client.Close()
	for {
		// Another server on this port has another directory.
		if dir, err := client.ConfigGet(ctx, "dir").Result(); err == nil && dir["dir"] == s.dir {
			return nil
		}
		select {
		case <-s.exited:
			return errors.New("redis-server did not start")
		case <-ctx.Done():
			s.Stop()
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Stop kills the server, as a crash would.
func (s *Server) Stop() {
	_ = s.cmd.Process.Kill() // it may have ended already
	<-s.exited
}
