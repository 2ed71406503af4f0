package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// startCluster starts six nodes and makes a cluster of them.
func startCluster(ctx context.Context, dir string) (nodes []*server, stop func(), err error) {
	stop = func() {
		for _, n := range nodes {
			n.stop()
		}
	}
	var addrs []string
	for i := range 6 {
		n, err := startServer(ctx, filepath.Join(dir, strconv.Itoa(i)),
			"--cluster-enabled", "yes",
			"--cluster-require-full-coverage", "no", // or all keys are refused while one master is away
			"--cluster-node-timeout", "3000") // milliseconds of silence until a master is held to be down
		if err != nil {
			stop()
			return nil, nil, err
		}
		nodes, addrs = append(nodes, n), append(addrs, n.addr)
	}
	create := append([]string{"--cluster", "create"}, addrs...)
	create = append(create, "--cluster-replicas", "1", "--cluster-yes")
	if text, err := exec.CommandContext(ctx, "redis-cli", create...).CombinedOutput(); err != nil {
		stop()
		return nil, nil, fmt.Errorf("redis-cli: %w\n%s", err, text)
	}
	for _, n := range nodes {
		if err := n.join(ctx); err != nil {
			stop()
			return nil, nil, err
		}
	}
	return nodes, stop, nil
}

// linked is what a master says that has a replica in sync, and a replica that is.
var linked = regexp.MustCompile(`state=online|master_link_status:up`)

// join waits until the node knows that the cluster can serve, and can fail over.
func (s *server) join(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: s.addr})
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

// server is a redis-server on loopback that keeps nothing on disk.
type server struct {
	addr, dir string
	args      []string
	cmd       *exec.Cmd
	exited    chan struct{}
}

// startServer starts one on a port that is free: another program may take the
// port first, so it tries a few.
func startServer(ctx context.Context, dir string, args ...string) (s *server, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for range 10 {
		s = &server{dir: dir, args: args, addr: "127.0.0.1:" + strconv.Itoa(10_000+rand.IntN(10_000))}
		if err = s.start(ctx); err == nil || ctx.Err() != nil {
			return s, err
		}
	}
	return nil, err
}

// start returns when the server is ready for commands.
func (s *server) start(ctx context.Context) error {
	_, port, _ := net.SplitHostPort(s.addr)
	s.cmd = exec.Command("redis-server", append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", s.dir,
		"--save", ""}, s.args...)...)
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("%w: is redis-server installed?", err)
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(s.cmd, s.exited)
	client := redis.NewClient(&redis.Options{Addr: s.addr})
	defer client.Close()
	for {
		// Whoever else listens there has another directory.
		if dir, err := client.ConfigGet(ctx, "dir").Result(); err == nil && dir["dir"] == s.dir {
			return nil
		}
		select {
		case <-s.exited:
			return errors.New("redis-server did not start")
		case <-ctx.Done():
			s.stop()
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// stop kills the server, as a crash would.
func (s *server) stop() {
	_ = s.cmd.Process.Kill() // or it has ended
	<-s.exited
}
