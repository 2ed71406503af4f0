package torture

import (
	"encoding/gob"
	"io"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
)

// record is what a process tells the runner of one thing that happened to it.
type record struct {
	Key    lineID
	What   what
	At     time.Time        // when it happened; of a request or a call, when it began
	Took   time.Duration    // of a request or a call
	Woke   time.Duration    // how late the machine woke the caller whose timer was due, if it slept
	N      int64            // tokens; of what was settled, used above the charge; of a call, held in memory when it had ended
	Result reservoir.Result // of a request
	Away   bool             // the breaker is open, as hooks tell
	Err    string           // what a request, a call or Close ended in
	Stats  *reservoir.Stats // of the limiter that was closed
}

// lineID names a key.
type lineID struct {
	Role role
	Part int // of the store
}

type what int

const (
	asked what = iota
	settled
	renewed // its window was reset, or may have been
	called  // the store
	changed // the breaker
	closed
)

// journal is where a process writes its records, each by one write to a pipe as soon
// as it is known: a process that is killed loses at most the request that each of
// its goroutines was just being told about.
type journal struct {
	mu  sync.Mutex
	out *gob.Encoder
}

func (j *journal) note(r record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_ = j.out.Encode(r) // without the runner, SIGPIPE ends this process
}

// read calls take with each record, until the process has ended.
func read(from io.Reader, take func(*record)) {
	for in := gob.NewDecoder(from); ; {
		r := new(record)
		if in.Decode(r) != nil {
			return
		}
		take(r)
	}
}

// answer is how a caller came by its answer, for what that may cost.
type answer int

const (
	fromStock answer = iota // no I/O
	fromStore               // it waited for a call that succeeded
	refused                 // from memory
	byPolicy                // it waited for a call that failed
	byBreaker               // the shard was known to be away
	wakeUp                  // none: how late the machine wakes callers whose timer is due
)

func (r *record) answer() answer {
	switch {
	case (r.Err != "" || r.Result.Source == reservoir.Fallback) && r.Away:
		return byBreaker
	case r.Err != "" || r.Result.Source == reservoir.Fallback:
		return byPolicy
	case r.Result.Source == reservoir.Local:
		return fromStock
	case r.Result.Source == reservoir.Denied:
		return refused
	}
	return fromStore
}
