package redisstore

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// flight is a goroutine that brings calls to the server: one by itself, several
// in a pipeline. It is used by that goroutine, but for lane.
type flight struct {
	group *group
	lane  bool // it holds one; guarded by group.mu
	own   bool // it is its caller's own goroutine

	answered bool // the server has said something
	took     time.Duration

	calls []*call
	one   [1]*call // room for the first, who mostly flies alone
}

func (f *flight) board(c *call) {
	if f.calls == nil {
		f.calls = f.one[:0]
	}
	c.flight.Store(f)
	f.calls = append(f.calls, c)
}

// fly serves what has boarded, and who waits when it comes back.
func (f *flight) fly() {
	back := false
	defer func() {
		if !back {
			f.crash(recover())
		}
	}()
	for f.leg(); f.group.again(f); {
		f.leg()
	}
	back = true
}

// crash hands the panic of a hook of go-redis to the callers who have no answer yet,
// and frees the lane. It is nil if the hook has ended the goroutine.
func (f *flight) crash(panicked any) {
	for _, c := range f.calls {
		c.panic, c.err = panicked, errCrashed
		c.settle()
	}
	f.group.overdue(f)
}

// quietly runs f in a goroutine without a caller who could be told of a hook's panic.
// It would end the process; callers meet the same hook.
func quietly(f func()) {
	go func() {
		defer func() { _ = recover() }()
		f()
	}()
}

var errCrashed = errors.New("a hook of the client ended the call")

// leg brings the calls on board to their answers. Those that have none yet stay on
// board.
func (f *flight) leg() {
	began := time.Now()
	f.answered = false
	f.send(f.calls, nil)
	if f.calls = f.answer(f.calls, true); len(f.calls) > 0 {
		f.load(f.calls)
		f.calls = nil
	}
	f.took = time.Since(began)
}

// send sends the calls and returns when go-redis has an outcome for each. Those
// in whole go by their script's text.
func (f *flight) send(calls []*call, whole map[*call]bool) {
	now := f.group.clock.read()
	for _, c := range calls {
		c.loads = f.group.loads[c.script.index].Load()
		c.stamp(now, whole[c])
	}
	ctx := calls[0].ctx
	if !f.own {
		ctx = detach(calls)
	}
	if a := f.group.ack; a.concerns(calls) {
		a.send(ctx, f.group.client, calls)
		return
	}
	if len(calls) == 1 {
		_ = f.group.client.Process(ctx, calls[0].cmd)
		return
	}
	pipe := f.group.client.Pipeline()
	_ = pipe.BatchProcess(ctx, commands(calls)...)
	_, err := pipe.Exec(ctx)
	unanswered(calls, err)
}

// unanswered hands the pipeline's error to the calls that have neither an error nor
// a reply of their own. go-redis leaves commands so when a server refuses the
// connection, say for its password: it takes that for the reply to one of them.
func unanswered(calls []*call, err error) {
	if err == nil {
		return
	}
	for _, c := range calls {
		if c.cmd.Err() == nil && c.cmd.Val() == nil {
			c.cmd.SetErr(err)
		}
	}
}

func commands(calls []*call) []redis.Cmder {
	list := make([]redis.Cmder, len(calls))
	for i, c := range calls {
		list[i] = c.cmd
	}
	return list
}

// answer settles the calls, but for those that go on: to another server or, if
// retry is set, to this one, for it does not know their script. It returns the
// latter. For a caller that has left only a script is loaded, which does nothing.
func (f *flight) answer(calls []*call, retry bool) (missing []*call) {
	var now int64
	kept := calls[:0]
	for _, c := range calls {
		now = max(now, c.judge())
		switch {
		case c.err == nil:
			c.settle()
		case retry && redis.HasErrorPrefix(c.err, "NOSCRIPT"):
			kept = append(kept, c)
		case c.state.Load() == left:
			c.settle()
		case f.group.elsewhere != nil && isElsewhere(c.err):
			f.group.deny(c.err, c.tag)
			f.group.elsewhere.launch(c)
		default:
			if redis.HasErrorPrefix(c.err, "READONLY") {
				f.group.denied.Add(1) // an heir is none then; who repeats the call, asks another
			}
			c.settle()
		}
	}
	if now > 0 {
		f.group.clock.heard(now)
		f.answered = true
	}
	return kept
}

// load tells the server the scripts it does not know, each by the first call that
// needs it, with the others behind it. A script is never loaded ahead: a restart
// or a failover would lose it. If another flight has told it since these calls
// left, their hashes will do.
func (f *flight) load(missing []*call) {
	f.tell(missing)
	f.answer(missing, false)
}

// tell is over for the others that have scripts to load even if a hook of go-redis
// panics.
func (f *flight) tell(missing []*call) {
	done := sync.OnceFunc(f.group.teach())
	defer done()
	whole := make(map[*call]bool)
	var told [len(f.group.loads)]bool
	for _, c := range missing {
		if i := c.script.index; !told[i] && !f.group.taught(c) {
			whole[c], told[i] = true, true
		}
	}
	if len(whole) == 0 {
		done() // nobody needs to wait for hashes
	}
	f.send(missing, whole)
	for i := range told {
		if told[i] {
			f.group.loads[i].Add(1)
		}
	}
}

// isElsewhere reports whether the server surely did not execute a command, for
// the slot or the server itself has moved.
func isElsewhere(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") || errors.Is(err, redis.ErrClosed)
}

// unsent is why a call was not sent: its context was over, or there was nobody to
// send it to.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

func (unsent) Is(target error) bool { return target == errUnsent }
