package backendtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// patience is for a message that should come. No test takes so long that passes.
var patience = 20 * time.Second

// listen makes processes listen, if the store is a Listener, until the test ends.
func (b *bench) listen(processes ...string) {
	b.t.Helper()
	listener, ok := b.store.(backend.Listener)
	if !ok {
		return
	}
	b.mail = make(map[string]chan backend.Message)
	for _, process := range processes {
		mail := make(chan backend.Message, 1000)
		b.mail[process] = mail
		sub := listener.Listen(process, func(m backend.Message) { mail <- m })
		b.t.Cleanup(sub.Close)
		for sub.Err(b.key) != nil {
			select {
			case <-mail:
			case <-time.After(patience):
				b.t.Fatalf("%s does not hear: %v", process, sub.Err(b.key))
			}
		}
	}
}

// hears compares the messages about the key that have come to a process. What was sent before
// a last message to all has come before it, though not always in a cluster.
func (b *bench) hears(process, want string) {
	b.t.Helper()
	if b.mail == nil {
		return
	}
	b.heard++
	last := backend.Message{Kind: backend.Changed, Key: b.key, Limit: b.heard}
	if err := b.store.(backend.Listener).Publish(b.t.Context(), last); err != nil {
		b.t.Fatal(err)
	}
	var got []string
	for ended := false; !ended || strings.Join(got, ", ") != want; {
		select {
		case m := <-b.mail[process]:
			switch {
			case m.Key != b.key:
			case m == last:
				ended = true
				if len(got) == 0 {
					got = append(got, "nothing")
				}
			case m.Kind != backend.Changed: // which is the end of what another process has heard
				if ended && got[0] == "nothing" {
					got = nil
				}
				got = append(got, b.words(m))
			}
		case <-time.After(patience):
			b.t.Fatalf("%s heard %q, want %q", process, got, want)
		}
	}
}

// words returns a message in words.
func (b *bench) words(m backend.Message) string {
	kinds := [...]string{"hearing", "recall", "exhausted", "again", "voided", "changed", "held"}
	text := kinds[m.Kind] + " window=" + b.window(m.Window)
	if m.Counter != b.limit.Counter() {
		text += " counter=" + m.Counter
	}
	if m.Limit != 0 {
		text += fmt.Sprint(" limit=", m.Limit)
	}
	return text
}

// testCalledAtOnce: one statement calls 32 clients at most, of any number, and each is called once.
func testCalledAtOnce(t testing.TB, s backend.Store) {
	for _, n := range []int64{40, 1000} {
		b := newBench(t, s, backend.Limit{Tokens: n + 1, Window: far})
		for i := range n {
			b.sync(0, backend.Statement{Client: fmt.Sprint("c", i), Want: 1, Hints: backend.Hints{Exact: true}})
		}
		for called := int64(32); called < min(n, 8*32); called += 32 {
			got := b.sync(time.Second, backend.Statement{Client: "x", Want: n, Need: n, Least: n})
			equal(t, "called", got.Called, called)
			equal(t, "idle", got.Idle, n-called)
		}
	}
}
