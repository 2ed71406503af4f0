package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a Redis, in the charge of a process that obeys these lines: "up" starts it, or
// starts it again with its data, "down" kills it, and the end of the input ends both. It answers "up ADDRESS"
// or "down" when that is done. The charge is a keeper of a redis-server, or the embedded
// server itself. So nothing is left even if the demo is killed.
type server struct {
	name   string
	cmd    *exec.Cmd
	orders io.WriteCloser
	said   *bufio.Reader
	addr   string
	client *redis.Client
	before int64 // calls before the last "down", because a restart resets the count
}

// startServer starts a redis-server, or the embedded one if none is installed. That is built only then,
// because it contains an interpreter.
func startServer(ctx context.Context) (*server, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if version := versionOf(name); version != "" {
			return launch(ctx, name+" "+version+", started for this", exec.Command(program, asKeeper, name))
		}
	}
	s, err := launch(ctx, "an embedded server (no redis-server is installed)", exec.Command("go", "run", "github.com/go-reservoir/reservoir/test/miniredis"))
	if err != nil {
		return nil, fmt.Errorf("no redis-server 7.0 or later is installed, and outside a clone there is no embedded one: %w", err)
	}
	return s, nil
}

var versionWord = regexp.MustCompile(` v=((\d+)\.\S+)`)

// versionOf returns the version of an installed server, or "" if there is none that is new enough.
func versionOf(name string) string {
	said, err := exec.Command(name, "--version").Output()
	m := versionWord.FindSubmatch(said)
	if err != nil || m == nil {
		return ""
	}
	if major, _ := strconv.Atoi(string(m[2])); major < 7 {
		return ""
	}
	return string(m[1])
}

func launch(ctx context.Context, name string, cmd *exec.Cmd) (s *server, err error) {
	s = &server{name: name, cmd: cmd}
	cmd.Stderr = os.Stderr
	if s.orders, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.said = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = s.orders.Close() })() // it may be compiling
	if err := s.up(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.client = redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1, DialTimeout: time.Second, DialerRetries: 1})
	return s, nil
}

// up starts the server, with what it held before.
func (s *server) up() error {
	answer, err := s.order("up")
	s.addr = strings.TrimPrefix(answer, "up ")
	return err
}

// down kills the server and checks that nobody answers at its address.
func (s *server) down(ctx context.Context) error {
	s.before = s.calls(ctx)
	if _, err := s.order("down"); err != nil {
		return err
	}
	if s.client.Ping(ctx).Err() == nil {
		return errors.New("the server was to be down, and answers")
	}
	return nil
}

func (s *server) order(word string) (answer string, err error) {
	if _, err := fmt.Fprintln(s.orders, word); err != nil {
		return "", err
	}
	answer, err = s.said.ReadString('\n')
	if err != nil {
		return "", errors.New("the server has ended")
	}
	return strings.TrimSpace(answer), nil
}

var scriptCalls = regexp.MustCompile(`cmdstat_eval(?:sha)?(?:_ro)?:calls=(\d+)`)

// calls is the server's own count of calls, or 0 if it has none.
func (s *server) calls(ctx context.Context) int64 {
	info, err := s.client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0 // the embedded server counts nothing
	}
	sum := s.before
	for _, m := range scriptCalls.FindAllStringSubmatch(info, -1) {
		n, _ := strconv.ParseInt(m[1], 10, 64)
		sum += n
	}
	return sum
}

// close ends the server and waits for that.
func (s *server) close() error {
	if s.client != nil {
		_ = s.client.Close()
	}
	_ = s.orders.Close()
	_ = s.cmd.Wait() // it has nothing more to say
	return nil
}

// keep keeps a redis-server as orders say, in a directory of its own.
func keep(program string, orders io.Reader, answers io.Writer) (err error) {
	signal.Ignore(os.Interrupt)
	dir, err := os.MkdirTemp("", "reservoir-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	k := &keeper{program: program, dir: dir}
	defer k.kill()
	for in := bufio.NewScanner(orders); in.Scan(); {
		answer := "down"
		switch in.Text() {
		case "up":
			if err := k.start(); err != nil {
				return err
			}
			answer = "up " + k.addr
		case "down":
			k.kill()
		}
		if _, err := fmt.Fprintln(answers, answer); err != nil {
			return err
		}
	}
	return nil
}

type keeper struct {
	program, dir, addr string
	cmd                *exec.Cmd
	ended              chan struct{}
}

// start starts the server and returns when it answers. It keeps its data in a file, so that
// no charge is lost when it is killed.
func (k *keeper) start() error {
	const attempts = 3 // another program may take the port first
	for range attempts {
		if k.addr == "" {
			free, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			k.addr = free.Addr().String()
			_ = free.Close()
		}
		_, port, _ := net.SplitHostPort(k.addr)
		log, err := os.Create(filepath.Join(k.dir, "log"))
		if err != nil {
			return err
		}
		k.cmd = exec.Command(k.program, "--bind", "127.0.0.1", "--port", port, "--dir", k.dir, "--save", "", "--appendonly", "yes")
		k.cmd.Stdout, k.cmd.Stderr = log, log
		if err := k.cmd.Start(); err != nil {
			return err
		}
		_ = log.Close()
		k.ended = make(chan struct{})
		go func() {
			_ = k.cmd.Wait()
			close(k.ended)
		}()
		if k.answers() {
			return nil
		}
		k.kill()
		k.addr = ""
	}
	said, _ := os.ReadFile(filepath.Join(k.dir, "log"))
	return fmt.Errorf("%s does not start: %s", k.program, said)
}

// answers waits until the server serves.
func (k *keeper) answers() bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for patience := time.After(10 * time.Second); ; {
		select {
		case <-tick.C:
			if pong(k.addr) {
				return true
			}
		case <-k.ended:
			return false
		case <-patience:
			return false
		}
	}
}

// pong reports whether a server at an address is ready for commands.
func pong(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(conn, "PING\r\n") // what fails has no reply
	reply, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.HasPrefix(reply, "+PONG")
}

// kill ends the server at once, if it runs, as a crash would.
func (k *keeper) kill() {
	if k.cmd == nil {
		return
	}
	_ = k.cmd.Process.Kill() // it may have ended: Ctrl-C reaches it too
	<-k.ended
	k.cmd = nil
}
