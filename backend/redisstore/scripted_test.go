package redisstore

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// scripted is a server that answers what a test tells it to.
type scripted struct {
	addr string

	mu     sync.Mutex
	answer func(n int, sc *script) string
	calls  int // of scripts, so far
}

// Answers that are none. A reply that ends with hangUp is the last of its connection.
const (
	hangUp = "hang up"
	reset  = "reset"
	silent = "silent"
)

// newScripted starts a server that answers the n-th call of a script, from 0, with
// what answer returns: the text of a reply, or one of the above.
func newScripted(t *testing.T, answer func(n int, sc *script) string) *scripted {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &scripted{addr: listener.Addr().String(), answer: answer}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return s
}

// AnswersScripts returns the address of a server that answers every script with reply, and hangs up.
func AnswersScripts(t *testing.T, reply string) string {
	return newScripted(t, func(int, *script) string { return reply + hangUp }).addr
}

// client returns one that says nothing of itself.
func (s *scripted) client(t *testing.T, opts ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: s.addr, Protocol: 2, DisableIdentity: true}
	for _, opt := range opts {
		opt(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *scripted) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *scripted) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		reply, ends := strings.CutSuffix(s.reply(args), hangUp)
		switch reply {
		case reset:
			_ = conn.(*net.TCPConn).SetLinger(0)
			return
		case silent:
		default:
			if _, err := io.WriteString(conn, reply); err != nil || ends {
				return
			}
		}
	}
}

func (s *scripted) reply(args []string) string {
	switch name := strings.ToLower(args[0]); {
	case name == "hello":
		return "-ERR unknown command 'hello'\r\n" // as Redis before 6
	case !strings.HasPrefix(name, "eval"):
		return "+OK\r\n"
	}
	sc := scriptOf(args[1])
	s.mu.Lock()
	n := s.calls
	s.calls++
	s.mu.Unlock()
	return s.answer(n, sc)
}

// scriptOf finds a script by its hash or its text.
func scriptOf(name string) *script {
	for _, sc := range scripts {
		if name == sc.sha || name == sc.source {
			return sc
		}
	}
	return nil
}

var scripts = []*script{syncScript, checkScript, resetScript, rollScript, rollCheckScript, rollResetScript}

// served is a reply of the script with zeros.
func served(sc *script) string {
	return fmt.Sprintf("*%d\r\n", sc.fields) + strings.Repeat(":0\r\n", sc.fields)
}

// readCommand reads an array of strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	n, err := readLength(in)
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := readLength(in)
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		args[i] = string(text[:size])
	}
	return args, nil
}

// readLength reads "*3" or "$3".
func readLength(in *bufio.Reader) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimRight(line[1:], "\r\n"))
}
