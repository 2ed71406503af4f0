// Package mailbox delivers messages to limiters in this process: in order, and in
// a goroutine of their own, which ends when there are none.
package mailbox

import (
	"slices"
	"sync"

	"github.com/go-reservoir/reservoir/backend"
)

// most is how many messages wait in a box. Later ones are lost.
const most = 1 << 14

// Office has the boxes of a store. The zero Office is empty. It is safe for concurrent use,
// and its lock is never held while a message is heard.
type Office struct {
	mu    sync.Mutex
	boxes map[string][]*box // by process
}

// box is what one limiter listens to. The lock of its office guards all but hear, which never changes.
type box struct {
	hear    func(backend.Message)
	waiting []backend.Message
	busy    bool // a goroutine delivers
	closed  bool
}

// Open delivers messages to the process from now on, and those to all. The result closes
// the box, once, and reports whether it was the only one of the process.
func (o *Office) Open(process string, hear func(backend.Message)) (close func() (last bool)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.boxes == nil {
		o.boxes = make(map[string][]*box)
	}
	b := &box{hear: hear}
	o.boxes[process] = append(o.boxes[process], b)
	return func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		if b.closed {
			return false
		}
		b.closed, b.waiting = true, nil
		o.boxes[process] = slices.DeleteFunc(o.boxes[process], func(other *box) bool { return other == b })
		if len(o.boxes[process]) > 0 {
			return false
		}
		delete(o.boxes, process)
		return true
	}
}

// Send delivers m to a process: to each of its boxes, or to nobody if it has none. It never waits.
func (o *Office) Send(process string, m backend.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range o.boxes[process] {
		o.put(b, m)
	}
}

// SendAll delivers m to every process. It never waits.
func (o *Office) SendAll(m backend.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, boxes := range o.boxes {
		for _, b := range boxes {
			o.put(b, m)
		}
	}
}

// put adds m to a box, and starts the goroutine that delivers if none does. The caller holds the lock.
func (o *Office) put(b *box, m backend.Message) {
	if len(b.waiting) == most {
		return
	}
	b.waiting = append(b.waiting, m)
	if !b.busy {
		b.busy = true
		go o.deliver(b)
	}
}

// deliver calls hear until no message waits. It takes all that wait at once, so that hear is called without the lock; a
// message that comes meanwhile is in the next list, so the order is kept. Messages of a list in hand are still heard after
// the box was closed.
func (o *Office) deliver(b *box) {
	for {
		o.mu.Lock()
		list := b.waiting
		b.waiting = nil
		b.busy = len(list) > 0
		o.mu.Unlock()
		if len(list) == 0 {
			return
		}
		for _, m := range list {
			b.hear(m)
		}
	}
}
