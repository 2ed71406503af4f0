package interval_test

import (
	"context"
	"crypto/sha1"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
	"github.com/go-reservoir/reservoir/test/interval"
)

// fault is something that goes wrong. One of the network is armed for a while, perhaps together with others, and the
// proxy counts it. Another does all itself, and returns how often it was seen to happen.
type fault struct {
	name  string
	arm   func(*run)
	count func(*redistest.Proxy) int64
	do    func(*run) int64
}

const (
	echoed   = "messages repeated and late"
	inFlight = "calls under way at a SIGKILL"
)

var faults = []fault{
	{name: "replies lost", arm: func(x *run) { x.proxy.SwallowReply("evalsha", 1+x.draw(9)) }, count: (*redistest.Proxy).Swallowed},
	{name: "requests lost", arm: func(x *run) { x.proxy.DropRequests("evalsha", 1+x.draw(9)) }, count: (*redistest.Proxy).Dropped},
	{name: "replies late", arm: func(x *run) { x.proxy.Delay(x.plan.Timeout * time.Duration(2+x.draw(10)) / 8) }, count: (*redistest.Proxy).Delayed},
	{name: "requests held and late", arm: func(x *run) { x.proxy.Hold(true) }, count: (*redistest.Proxy).Held},
	{name: "requests repeated", arm: func(x *run) {
		later := x.plan.Timeout / 2 // a store may refuse what comes after a timeout
		if x.draw(3) == 0 {
			later = 2 * x.pause
		}
		x.proxy.Repeat(repeatable, 1+x.draw(20), time.Duration(x.draw(int(later))))
	}, count: (*redistest.Proxy).Repeated},
	{name: "connections cut", arm: func(x *run) { x.proxy.Cut() }, count: (*redistest.Proxy).CutConns},
	{name: "messages lost", arm: func(x *run) { x.proxy.LoseMessages(1 + x.draw(9)) }, count: (*redistest.Proxy).Lost},
	{name: echoed}, // all the time; see echo
	{name: "process SIGSTOP", do: (*run).stopProcess},
	{name: "process SIGKILL", do: (*run).kill},
	{name: "server SIGSTOP", do: func(x *run) int64 {
		x.server.Pause() // stands still when it returns
		defer x.server.Resume()
		x.sleep(x.span)
		return 1
	}},
	{name: "clock back", do: (*run).setBack},
	{name: "limits changed", do: (*run).change},
}

// happened returns how often a fault was seen to happen.
func (x *run) happened(f fault) (n int64) {
	if f.count != nil {
		return f.count(x.proxy)
	}
	x.locked(func() { n = x.done[f.name] })
	return n
}

// attack has faults happen for a while, those of the network beside the others; each once if that is 0.
func (x *run) attack(during time.Duration) {
	network := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.arm == nil })
	others := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.do == nil })
	x.locked(func() {
		x.rng.Shuffle(len(network), func(i, j int) { network[i], network[j] = network[j], network[i] })
		x.rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	})
	end := time.Now().Add(during)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; i < len(network) || time.Now().Before(end); i++ {
			network[i%len(network)].arm(x)
			if during > 0 && x.draw(2) == 0 { // and the next one beside it
				continue
			}
			x.sleep(x.span)
			x.proxy.Heal()
			x.sleep(x.span * time.Duration(x.draw(x.calm)))
		}
	})
	for i := 0; i < len(others) || time.Now().Before(end); i++ {
		f := others[i%len(others)]
		n := f.do(x)
		x.locked(func() { x.done[f.name] += n })
		x.sleep(x.span)
	}
	wg.Wait()
	x.proxy.Heal()
	for _, f := range network { // one may have hidden another
		if x.happened(f) == 0 {
			f.arm(x)
			x.await(f.name, func() bool { return x.happened(f) > 0 })
			x.proxy.Heal()
		}
	}
}

// repeatable reports whether a chunk of requests has only statements of account. Others are promised never to be repeated.
func repeatable(chunk []byte) bool {
	text := string(chunk)
	n := strings.Count(text, "evalsha")
	return n > 0 && n == strings.Count(text, shaOfSync)+strings.Count(text, "\r\nsync\r\n")
}

var shaOfSync = fmt.Sprintf("%x", sha1.Sum([]byte(lua.Sync)))

// stopProcess stops a process. It is seen to make no calls.
func (x *run) stopProcess() int64 {
	p := x.any()
	p.Pause()
	defer p.Resume()
	before := p.calls()
	x.sleep(x.pause * 2 / 3)
	if p.calls() != before {
		return 0
	}
	return 1
}

// setBack sets the server's clock back by up to four windows, as TIME shows.
func (x *run) setBack() int64 {
	step := time.Duration(1+x.draw(int(4*x.plan.Series[0].Limit.Window/time.Millisecond))) * time.Millisecond
	was := x.clock.Ahead()
	x.ahead -= step
	begin := now()
	x.clock.Set(x.ahead)
	at := interval.Span{Begin: begin, End: now()}
	x.locked(func() {
		for i, h := range x.past {
			x.past[i].Clock = append(h.Clock, interval.Setting{Span: at, Ahead: h.Clock[len(h.Clock)-1].Ahead - int64(step)})
		}
	})
	if moved := was - x.clock.Ahead(); moved < step/2 && step > 100*time.Millisecond {
		return 0
	}
	return 1
}

// change changes the limits of the series that have two.
func (x *run) change() int64 {
	x.locked(func() {
		for i, s := range x.plan.Series {
			if s.Other == 0 {
				continue
			}
			tokens := s.Limit.Tokens + s.Other - x.board.tokens[i].Load()
			x.past[i].Limits = append(x.past[i].Limits, interval.Limit{At: now(), Tokens: tokens})
			x.board.tokens[i].Store(tokens)
		}
	})
	return 1
}

// echo sends messages of the server once more, later. So some come twice, and those of which the first is lost come late.
func (x *run) echo() {
	client := x.server.Client()
	sub := client.PSubscribe(x.finish, "*")
	defer context.AfterFunc(x.finish, func() { _ = sub.Close() })()
	var copies sync.WaitGroup
	defer copies.Wait()
	ours := make(map[string]int) // copies that will come here, too
	for m := range sub.Channel() {
		text, again := m.Channel+" "+m.Payload, x.draw(2) == 0
		x.locked(func() {
			if ours[text] > 0 {
				ours[text]--
				again = false
			}
		})
		if !again {
			continue
		}
		later := time.Duration(x.draw(int(2 * x.pause)))
		copies.Go(func() {
			select {
			case <-x.finish.Done():
				return
			case <-time.After(later):
			}
			x.locked(func() { ours[text]++ })
			if heard, _ := client.Publish(x.finish, m.Channel, m.Payload).Result(); heard > 1 { // we are one
				x.locked(func() { x.done[echoed]++ })
			}
		})
	}
}
