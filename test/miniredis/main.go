// Miniredis is the server of examples/demo where no redis-server is installed: as a process of its own, it obeys the
// lines "up" and "down" on its standard input, and ends when that ends.
//
// It is for nothing but the demo.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

func main() {
	signal.Ignore(os.Interrupt) // the demo ends it
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "miniredis:", err)
		os.Exit(1)
	}
}

func serve(orders io.Reader, answers io.Writer) error {
	m := miniredis.NewMiniRedis()
	defer m.Close()
	var mu sync.Mutex
	last := time.Now()
	pass := func(_ *server.Peer, command string, _ ...string) bool {
		if command == "EVALSHA" || command == "EVAL" { // keys expire only when time is told to pass, and scripts read when they do
			mu.Lock()
			defer mu.Unlock()
			now := time.Now()
			m.FastForward(now.Sub(last))
			last = now
		}
		return false // go on
	}
	for in := bufio.NewScanner(orders); in.Scan(); {
		answer := "down"
		switch in.Text() {
		case "up":
			if err := m.Start(); err != nil { // again: at the same address, with its keys
				return err
			}
			m.Server().SetPreHook(pass)
			answer = "up " + m.Addr()
		case "down":
			m.Close()
		}
		if _, err := fmt.Fprintln(answers, answer); err != nil {
			return err
		}
	}
	return nil
}
