package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/mailbox"
)

// beat is how long the connection may be silent before the store asks the server for a
// sign of life. After one more beat the connection counts as cut.
const beat = time.Second

// Why a process hears nothing.
var (
	errNotYet = errors.New("no message has come back yet")
	errMute   = redacted("NOPERM the user may not PUBLISH from a script")
)

// ears are the processes that listen, which usually is one, with several limiters.
type ears struct {
	mail mailbox.Office

	mu  sync.Mutex
	all map[string]*ear // by process
}

// ear is how a process hears messages: a connection of its own. The scripts
// publish to a channel for each process, and to one for all: see sync.lua. In a cluster the
// message comes to any node by the cluster's bus.
type ear struct {
	store   *Store
	process string
	cancel  context.CancelFunc // ends it
	err     error              // why it hears nothing; nil = it hears. Guarded by the mutex of ears
}

// subscription implements backend.Subscription.
type subscription struct {
	ears    *ears
	process string
	close   func() (last bool)
}

// Listen implements backend.Listener. A process hears once a message has come back that it
// has sent to itself from a script. One goroutine keeps one connection until the process'
// last subscription is closed, or the store.
func (s *Store) Listen(process string, hear func(backend.Message)) backend.Subscription {
	sub := &subscription{&s.ears, process, s.ears.mail.Open(process, hear)}
	s.ears.mu.Lock()
	defer s.ears.mu.Unlock()
	if s.ears.all[process] != nil {
		return sub
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &ear{s, process, cancel, s.begin("listen")}
	if s.ears.all[process] = e; e.err == nil {
		e.err = s.reading("listen", errNotYet)
		go e.run(ctx)
	}
	return sub
}

// Err implements backend.Subscription.
func (sub *subscription) Err(string) error {
	sub.ears.mu.Lock()
	defer sub.ears.mu.Unlock()
	if e := sub.ears.all[sub.process]; e != nil {
		return e.err
	}
	return nil
}

// Close implements backend.Subscription.
func (sub *subscription) Close() {
	sub.ears.mu.Lock()
	defer sub.ears.mu.Unlock()
	if sub.close() {
		sub.ears.all[sub.process].cancel()
		delete(sub.ears.all, sub.process)
	}
}

// run makes one connection after the other until ctx ends.
func (e *ear) run(ctx context.Context) {
	defer e.store.calls.End()
	for wait := pause; ctx.Err() == nil; wait = min(2*wait, beat) {
		if e.connect(ctx) {
			wait = pause
		}
		sleep(ctx, wait)
	}
}

// connect receives messages until the connection fails, is silent or is refused. It reports whether any has come.
func (e *ear) connect(ctx context.Context) (heard bool) {
	all, own := e.store.channel(""), e.store.channel(e.process)
	pubsub := e.store.client.Subscribe(ctx)
	defer pubsub.Close()
	defer context.AfterFunc(ctx, func() { _ = pubsub.Close() })() // it ends a read
	_ = pubsub.Subscribe(ctx, all, own)                           // an error comes again when it is read
	asked, tested := false, time.Now()
	for {
		received, err := pubsub.ReceiveTimeout(ctx, beat)
		network, ok := errors.AsType[net.Error](err)
		switch {
		case ctx.Err() != nil:
			return heard
		case err == nil:
			heard, asked = true, false
		case ok && network.Timeout() && !asked:
			asked = true
			_ = pubsub.Subscribe(ctx, all) // once more; a PING would need a right of its own
		default:
			e.store.hears(e.process, err)
			return heard
		}
		switch m := received.(type) {
		case *redis.Subscription:
			if m.Channel == own {
				tested = time.Time{}
			}
		case *redis.Message:
			switch message, ok := e.store.parse(m.Payload); {
			case !ok:
			case message.Kind == backend.Hearing:
				e.store.hears(e.process, nil)
			default:
				e.store.ears.mail.Send(e.process, message)
			}
		}
		e.store.ears.mu.Lock()
		deaf := e.err != nil
		e.store.ears.mu.Unlock()
		if deaf && time.Since(tested) >= beat {
			tested = time.Now()
			e.store.calls.Add()
			go e.test(ctx)
		}
	}
}

// test sends the process a message in the way in which the scripts do.
func (e *ear) test(ctx context.Context) {
	defer e.store.calls.End()
	within, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	anyKey := rand.Text() // another one each time, because in a cluster its node may be away
	if err := e.store.hello(within, e.store.client, anyKey, e.process); err != nil && ctx.Err() == nil {
		e.store.hears(e.process, err)
	}
}

// hello sends a process a message of kind Hearing, by a script. The script does not use the key, but
// some services refuse a script that names none.
func (s *Store) hello(ctx context.Context, server redis.UniversalClient, key, process string) error {
	return server.Eval(ctx, "return redis.pcall('PUBLISH', ARGV[1], '0 0 0 0 ' .. KEYS[1])", []string{tagOf(s.prefix, key)}, s.channel(process)).Err()
}

// hears records why a process, or "" all, hear nothing, or that they hear, and tells them if that has changed.
func (s *Store) hears(process string, why error) {
	why = s.reading("listen", why)
	s.ears.mu.Lock()
	defer s.ears.mu.Unlock()
	for name, e := range s.ears.all {
		if (process == "" || process == name) && fmt.Sprint(e.err) != fmt.Sprint(why) {
			e.err = why
			s.ears.mail.Send(name, backend.Message{Kind: backend.Hearing})
		}
	}
}

// Publish implements backend.Listener with one PUBLISH.
func (s *Store) Publish(ctx context.Context, m backend.Message) error {
	if err := backend.ValidateKey(m.Key); err != nil {
		return err
	}
	if err := s.begin("publish"); err != nil {
		return err
	}
	defer s.calls.End()
	text := fmt.Sprintf("%d %d %d %d %s", m.Kind, m.Window.End, m.Window.Gen, m.Limit, tagOf(s.prefix, m.Key))
	if m.Counter != "" {
		text += ":" + m.Counter
	}
	s.calls.Add()
	end := make(chan error, 1)
	go func() {
		defer s.calls.End()
		end <- s.client.Publish(ctx, s.channel(""), text).Err()
	}()
	select {
	case err := <-end:
		network, ok := errors.AsType[net.Error](err)
		if until, bounded := ctx.Deadline(); ok && network.Timeout() && bounded && time.Until(until) < time.Millisecond {
			err = context.DeadlineExceeded // the socket's timeout comes a moment earlier, as another error
		}
		return s.reading("publish", err)
	case <-ctx.Done(): // go-redis does not interrupt a read
		return s.reading("publish", ctx.Err())
	}
}

// channel is where a process gets its messages, or "" all.
func (s *Store) channel(process string) string { return s.prefix + "reservoir:" + process }

// parse reads a message as the scripts write it.
func (s *Store) parse(text string) (m backend.Message, ok bool) {
	parts := strings.SplitN(text, " ", 5)
	if len(parts) < 5 {
		return m, false
	}
	var n [4]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(parts[i], 10, 64); err != nil || n[i] < 0 {
			return m, false
		}
	}
	key, counter, ok := split(parts[4], s.prefix)
	m = backend.Message{Kind: backend.Kind(min(n[0], math.MaxUint8)), Key: key, Counter: counter, Window: backend.Window{End: n[1], Gen: n[2]}, Limit: n[3]}
	return m, ok
}
