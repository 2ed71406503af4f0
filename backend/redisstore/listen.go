package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
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

// ears are how a store hears messages: one connection for all processes that listen,
// which usually is one process with several limiters. It exists while anybody listens. The scripts
// publish to a channel for each process, and to one for all: see sync.lua. In a cluster the
// message comes to any node by the cluster's bus.
type ears struct {
	store *Store
	mail  mailbox.Office

	mu     sync.Mutex
	deaf   map[string]error // by process: why it hears nothing; nil = it hears
	pubsub *redis.PubSub    // nil = nobody listens
	cancel context.CancelFunc
	tested time.Time // when deaf processes last sent themselves a message
}

// subscription implements backend.Subscription.
type subscription struct {
	ears    *ears
	process string
	close   func() (last bool)
}

// Listen implements backend.Listener. A process hears once a message has come back that it
// has sent to itself from a script. One goroutine keeps one connection until the last
// subscription is closed, or the store.
func (s *Store) Listen(process string, hear func(backend.Message)) backend.Subscription {
	e := &s.ears
	sub := &subscription{e, process, e.mail.Open(process, hear)}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.deaf[process]; known {
		return sub
	}
	if err := s.begin("listen"); err != nil {
		e.deaf[process] = err
		return sub
	}
	e.deaf[process] = s.reading("listen", errNotYet)
	if e.pubsub != nil {
		go e.join(e.pubsub, process)
		return sub
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel, e.pubsub = cancel, s.client.Subscribe(ctx)
	go e.run(ctx, e.pubsub)
	return sub
}

// Err implements backend.Subscription.
func (sub *subscription) Err(string) error {
	sub.ears.mu.Lock()
	defer sub.ears.mu.Unlock()
	return sub.ears.deaf[sub.process]
}

// Close implements backend.Subscription.
func (sub *subscription) Close() {
	e := sub.ears
	e.mu.Lock()
	defer e.mu.Unlock()
	if !sub.close() {
		return
	}
	delete(e.deaf, sub.process)
	if len(e.deaf) == 0 {
		e.stop()
	} else if e.pubsub != nil {
		e.store.calls.Add()
		go e.part(e.pubsub, sub.process)
	}
}

// stop ends the connection. The caller holds e.mu.
func (e *ears) stop() {
	if e.pubsub != nil {
		e.cancel()
		_ = e.pubsub.Close() // ends a read
		e.pubsub = nil
	}
}

// join subscribes to a process' channel. The answer comes to run, as does an error.
func (e *ears) join(pubsub *redis.PubSub, process string) {
	defer e.store.calls.End()
	_ = pubsub.Subscribe(context.Background(), e.store.channel(process))
}

// part unsubscribes from it.
func (e *ears) part(pubsub *redis.PubSub, process string) {
	defer e.store.calls.End()
	_ = pubsub.Unsubscribe(context.Background(), e.store.channel(process))
}

// run receives messages until it is stopped. go-redis connects and subscribes again by itself
// after an error of the network, though not if the server is silent or refuses.
func (e *ears) run(ctx context.Context, pubsub *redis.PubSub) {
	defer e.store.calls.End()
	wait, asked := pause, false
	e.joinAll(ctx, pubsub)
	for {
		m, err := pubsub.ReceiveTimeout(ctx, beat)
		if ctx.Err() != nil {
			return
		}
		network, ok := errors.AsType[net.Error](err)
		silent := ok && network.Timeout()
		switch {
		case err == nil:
			wait, asked = pause, false
			e.receive(ctx, m)
		case silent && !asked:
			asked = true
			_ = pubsub.Subscribe(ctx, e.store.channel("")) // once more; a PING would need a right of its own
		default:
			e.cut(err)
			if sleep(ctx, wait); silent || isReply(err) {
				pubsub, asked = e.renew(ctx, pubsub), false
			}
			wait = min(2*wait, beat)
			continue
		}
		e.testAll(ctx)
	}
}

// renew replaces a connection.
func (e *ears) renew(ctx context.Context, old *redis.PubSub) *redis.PubSub {
	_ = old.Close()
	e.mu.Lock()
	if ctx.Err() != nil {
		e.mu.Unlock()
		return old
	}
	pubsub := e.store.client.Subscribe(ctx)
	e.pubsub = pubsub
	e.mu.Unlock()
	e.joinAll(ctx, pubsub)
	return pubsub
}

// joinAll subscribes to the channels of all processes, and to the one of all.
func (e *ears) joinAll(ctx context.Context, pubsub *redis.PubSub) {
	channels := []string{e.store.channel("")}
	e.mu.Lock()
	for process := range e.deaf {
		channels = append(channels, e.store.channel(process))
	}
	e.mu.Unlock()
	_ = pubsub.Subscribe(ctx, channels...)
}

// receive takes what the server sends.
func (e *ears) receive(ctx context.Context, received any) {
	switch m := received.(type) {
	case *redis.Subscription:
		process := strings.TrimPrefix(m.Channel, e.store.channel(""))
		e.mu.Lock()
		_, known := e.deaf[process]
		pubsub := e.pubsub
		e.mu.Unlock()
		if !known || pubsub == nil {
			return
		}
		e.store.calls.Add()
		if m.Kind == "subscribe" {
			go e.test(ctx, process)
		} else { // it has come back at the same time
			go e.join(pubsub, process)
		}
	case *redis.Message:
		process := strings.TrimPrefix(m.Channel, e.store.channel(""))
		switch message, ok := e.store.parse(m.Payload); {
		case !ok:
		case message.Kind == backend.Hearing:
			e.set(process, nil)
		case process == "":
			e.mail.SendAll(message)
		default:
			e.mail.Send(process, message)
		}
	}
}

// testAll makes the processes that are deaf try whether they hear, once a beat.
func (e *ears) testAll(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.tested) < beat {
		return
	}
	e.tested = time.Now()
	for process, err := range e.deaf {
		if err != nil {
			e.store.calls.Add()
			go e.test(ctx, process)
		}
	}
}

// test sends a process a message in the way in which the scripts do.
func (e *ears) test(ctx context.Context, process string) {
	defer e.store.calls.End()
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	anyKey := rand.Text() // another one each time, because in a cluster its node may be away
	if err := e.store.hello(ctx, e.store.client, anyKey, process); err != nil {
		e.set(process, err)
	}
}

// hello sends a process a message of kind Hearing, by a script. The script does not use the key, but
// some services refuse a script that names none.
func (s *Store) hello(ctx context.Context, server redis.UniversalClient, key, process string) error {
	return server.Eval(ctx, "return redis.pcall('PUBLISH', ARGV[1], '0 0 0 0 ' .. KEYS[1])", []string{tagOf(s.prefix, key)}, s.channel(process)).Err()
}

// cut records that nobody hears anything, and why.
func (e *ears) cut(why error) {
	e.mu.Lock()
	all := slices.Collect(maps.Keys(e.deaf))
	e.mu.Unlock()
	for _, process := range all {
		e.set(process, why)
	}
}

// set records why a process hears nothing, or that it hears, and tells it if that has changed.
func (e *ears) set(process string, why error) {
	why = e.store.reading("listen", why)
	e.mu.Lock()
	defer e.mu.Unlock()
	old, known := e.deaf[process]
	if known && fmt.Sprint(old) != fmt.Sprint(why) {
		e.deaf[process] = why
		e.mail.Send(process, backend.Message{Kind: backend.Hearing})
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
