package key

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/inflight"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/monotime"
	"github.com/go-reservoir/reservoir/internal/placement"
	"github.com/go-reservoir/reservoir/internal/tokens"
	"github.com/go-reservoir/reservoir/internal/waiters"
)

// Env is what the keys of one limiter share, and all that they see of it. Its settings are
// written before the first key, and only read after; the rest is safe for concurrent use.
type Env struct {
	Settings
	Caller Caller
	Clock  monotime.Clock
	Calls  inflight.Counter // calls in flight; none begins after Close
	Table  keytable.Table[Key]
	Counts Counts
	Closed atomic.Bool
	Life   context.Context // ends with End, which Close calls, and with it the tries of shards
	End    context.CancelFunc

	shards  sync.Map      // name → *Shard
	varies  bool          // a key's limit, or the length of its window, may change; set by Init
	lives   atomic.Int64  // the number of the last life of an account; see tokens.Tokens
	asks    atomic.Uint64 // numbers the questions for a key's limit
	leavers leavers
	waiters waiters.Pool[Verdict]
}

// Init sets up e, for at most maxKeys keys in memory.
func (e *Env) Init(s Settings, c Caller, maxKeys int64) {
	e.Settings, e.Caller, e.varies = s, c, s.ByKey || s.Limit.Calendar.Period != 0
	e.Life, e.End = context.WithCancel(context.Background())
	e.Clock.Init()
	e.Table.Init(maxKeys)
}

// Settings are the options of a limiter that its keys read.
type Settings struct {
	Limit    backend.Limit // of a key that has none of its own
	ByKey    bool          // keys have limits of their own, which may change
	Name     string        // stands before each key in the store
	Parts    Parts         // of a store whose shards fail independently, or nil
	Client   string        // names this limiter in the store
	Sizing   demand.Policy
	Direct   bool          // no stock: a statement asks for exactly what callers in line need
	Timeout  time.Duration // of a call
	Fallback Policy        // while the store is away

	MaxWaiting int // of a key's callers that stay; 0 = no bound

	ShardState func(shard string, now breaker.Change) // a hook, or nil
}

// Parts names the shard that a key of the store is on, without I/O.
type Parts interface{ Shard(stored string) string }

// Caller makes the calls of keys. No key is locked meanwhile, except that Hears
// may be called under the lock of a key.
type Caller interface {
	// Hears reports whether messages about a key of the store come here. It does no I/O.
	Hears(stored string) bool

	// Limit asks for the limit that a key has now. It calls a function of the user's,
	// which may block.
	Limit(key string) (backend.Limit, error)

	// Call makes the call of f within ctx and its timeout, and then calls its End, whose error it returns.
	Call(ctx context.Context, f *Fetch) error
}

// init makes the key of node n, on that shard.
func (e *Env) init(n *node, s *Shard, limit backend.Limit) {
	k := &n.State
	k.env, k.node, k.shard = e, n, s
	s.keys.Add(1)
	k.Account.Begin(limit, e.lives.Add(1))
	if k.Limit.Store(&e.Limit); limit != e.Limit { // or a calendar's window has another length
		k.Limit.Store(&limit)
	}
}

// Make returns the key, which it makes if it is not in memory, or nil if there is no room. A key that is leaving this counter comes
// back, because the first statement of another account would make void what this one gives back.
func (e *Env) Make(name string, limit backend.Limit) *Key {
	stored := "" // the only shard has them all
	if e.Parts != nil {
		stored = placement.Named(e.Name, name)
	}
	s := e.Shard(stored) // without the table's lock
	var back *Key
	n := e.Table.GetOrMake(name, func(n *node) *node {
		if back = e.leavers.take(name, limit); back != nil {
			return back.node
		}
		e.init(n, s, limit)
		return n
	})
	if back != nil {
		back.comeBack(limit)
	}
	if n == nil {
		return nil
	}
	return &n.State
}

// Shard returns the shard that a key of the store is on now, without I/O. It is looked up before each call, because a cluster
// has no shards until its first answer, and its slots move.
func (e *Env) Shard(stored string) *Shard {
	var name string
	if e.Parts != nil {
		name = e.Parts.Shard(stored)
	}
	if s, ok := e.shards.Load(name); ok {
		return s.(*Shard)
	}
	s := &Shard{Name: name, env: e, Changed: func(now breaker.Change) {
		if e.ShardState != nil {
			e.ShardState(name, now)
		}
	}}
	s.Lead.Store(int64(breaker.Slop))
	s.lane.Init(paced, rest)
	was, _ := e.shards.LoadOrStore(name, s)
	return was.(*Shard)
}

// Find returns the key if it is in memory, or nil.
func (e *Env) Find(name string) *Key {
	if n := e.Table.Find(name); n != nil {
		return &n.State
	}
	return nil
}

// FindStored is Find for the name of a key in the store.
func (e *Env) FindStored(stored string) *Key {
	name, key := placement.Split(stored)
	if name != e.Name {
		return nil
	}
	return e.Find(key)
}

// Get is Find without a lock. Rarely it misses a key that has just come.
func (e *Env) Get(name string) *Key {
	if n := e.Table.Get(name); n != nil {
		return &n.State
	}
	return nil
}

// All calls yield with every key in memory, also those that leave their counter, and holds no lock meanwhile.
func (e *Env) All(yield func(*Key) bool) {
	more := true
	e.Table.All(func(n *node) bool { more = yield(&n.State); return more })
	if more {
		e.leavers.all(yield)
	}
}

// Empty reports whether no key is in memory, and none leaves its counter.
func (e *Env) Empty() bool {
	e.leavers.mu.Lock()
	defer e.leavers.mu.Unlock()
	return len(e.leavers.keys) == 0 && e.Table.Len() == 0
}

// leavers are the keys that have left their counter for another one, or because their limit is special now. They are
// in memory until the store has confirmed what they gave back, and the share of the failure policy is over, because a plan
// that changes to and fro must not bring a share each time. But no request finds them.
type leavers struct {
	mu   sync.Mutex
	keys map[counter]*Key
}

// counter names a counter of a key.
type counter struct{ key, counter string }

// mostLeavers bounds them. More are forgotten at once, so what they hold expires with its window.
const mostLeavers = 4096

// add adds a key, unless there are too many.
func (l *leavers) add(k *Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.keys) >= mostLeavers {
		return false
	}
	if l.keys == nil {
		l.keys = make(map[counter]*Key)
	}
	l.keys[counter{k.node.Key, k.Limit.Load().Counter()}] = k
	return true
}

// remove removes a key, unless it was taken.
func (l *leavers) remove(k *Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := (counter{k.node.Key, k.Limit.Load().Counter()}); l.keys[c] == k {
		delete(l.keys, c)
	}
}

// take removes and returns the key that leaves the counter of a limit, or nil.
func (l *leavers) take(name string, limit backend.Limit) *Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.keys) == 0 {
		return nil
	}
	c := counter{name, limit.Counter()}
	k := l.keys[c]
	delete(l.keys, c)
	return k
}

// all calls yield with every key, without the lock.
func (l *leavers) all(yield func(*Key) bool) {
	l.mu.Lock()
	keys := make([]*Key, 0, len(l.keys))
	for _, k := range l.keys {
		keys = append(keys, k)
	}
	l.mu.Unlock()
	for _, k := range keys {
		if !yield(k) {
			return
		}
	}
}

// The pauses of a caller or a key that asks again. They double.
const (
	FirstPause   = 2 * time.Millisecond
	LongestPause = time.Second
)

// Counts has the counts of the slow path, and of keys that are gone. The hot path counts
// in its key.
type Counts struct {
	Taken, Refunded, Returned, Expired, Overdrawn atomic.Int64 // tokens
	Unknown                                       atomic.Int64 // tokens
	Spent                                         atomic.Int64 // tokens, by keys that are gone
	Left                                          atomic.Int64 // tokens used in windows that their keys have left; settling takes back no more

	Denied                                                atomic.Int64 // requests, by keys that are gone
	AdmittedByPolicy, Fallbacks, Waited, Failed, Shadowed atomic.Int64 // requests
	Calls, Syncs, Prefetches, Probes, GiveBacks           atomic.Int64 // calls
	Holds                                                 atomic.Int64 // begun here, or heard of

	Extra    extra
	moving   sync.Mutex // held while all counts are read, and while a key's become these
	admitted int64      // the last that Admitted returned
}

// Read calls f while no key's counts become the limiter's, so that none is missed or
// counted twice.
func (c *Counts) Read(f func()) {
	c.moving.Lock()
	defer c.moving.Unlock()
	f()
}

// Admitted is how many requests were admitted, if all keys have spent so many tokens. It is
// called within Read. The counters are not read at the same time, but it never goes down.
func (c *Counts) Admitted(spent int64) int64 {
	c.admitted = max(c.admitted, spent-c.Extra.Sum()+c.AdmittedByPolicy.Load())
	return c.admitted
}

// Move adds the tokens of m.
func (c *Counts) Move(m tokens.Moved) {
	c.Taken.Add(m.Taken)
	c.Returned.Add(m.Returned)
	c.Expired.Add(m.Expired)
	c.Overdrawn.Add(m.Overdrawn)
	c.Left.Add(m.Settled)
}

// RefundLeft takes back n tokens that no account holds any more: they have expired.
func (c *Counts) RefundLeft(n int64) {
	n = TakeUpTo(&c.Left, n)
	c.Refunded.Add(n)
	c.Expired.Add(n)
}

// overdraw counts n tokens that the failure policy has admitted.
// Those that turn out not to be used may still be settled.
func (c *Counts) overdraw(n int64) {
	c.Overdrawn.Add(n)
	c.Left.Add(n)
}

// TakeUpTo takes n from what is left, or all if that is less, and returns how much.
func TakeUpTo(left *atomic.Int64, n int64) int64 {
	for {
		was := left.Load()
		taken := min(n, was)
		if left.CompareAndSwap(was, was-taken) {
			return taken
		}
	}
}

// extra counts spent tokens that are not the first of their request: the other tokens of
// each request, and tokens settled above a charge. Spent less these is the number of
// requests, which the hot path does not count. It has many counters, so that processors
// that admit requests of different keys do not share one.
type extra [16]struct {
	atomic.Int64
	_ [56]byte // of the cache line
}

// Add counts n tokens of the key with that hash.
func (e *extra) Add(hash uint32, n int64) {
	if n != 0 {
		e[hash%uint32(len(e))].Add(n)
	}
}

// Sum is the sum of all counters, which are not read at the same time.
func (e *extra) Sum() (n int64) {
	for i := range e {
		n += e[i].Load()
	}
	return n
}
