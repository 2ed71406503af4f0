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
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// pair is the servers of a shard. In production they run on two machines, and
// Sentinel watches them.
type pair struct{ primary, replica *server }

func startPair(ctx context.Context, dir, name string) (*pair, error) {
	primary, err := startServer(ctx, filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(primary.addr)
	replica, err := startServer(ctx, filepath.Join(dir, name+"-replica"), "--replicaof", host+" "+port)
	if err != nil {
		primary.stop()
		return nil, err
	}
	p := &pair{primary, replica}
	if err := p.settle(ctx); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *pair) stop() {
	p.replica.stop()
	p.primary.stop()
}

// settle returns when the replica has all that the primary has, if that is up.
func (p *pair) settle(ctx context.Context) error {
	if !p.primary.up() {
		return nil
	}
	client := redis.NewClient(&redis.Options{Addr: p.primary.addr, ReadTimeout: 20 * time.Second})
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
		"--save", "", "--repl-diskless-sync-delay", "0"}, s.args...)...)
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

func (s *server) up() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}
