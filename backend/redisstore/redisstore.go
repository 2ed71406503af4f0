// Package redisstore stores limits in Redis 7.0 or later: one server, Sentinel or
// Cluster, through a client of go-redis. [Open] makes the client and the store from a
// URL, [Options] only the client's options. [OpenShards] spreads keys over servers.
//
// A limit of 60 s on key k is three Redis keys in one slot: {k}:60s counts the tokens charged in
// the window, {k}:60s:exp holds the window's end, and {k}:60s:own is the ledger of what each client was
// charged. They expire together, up to a minute after the window. Limits of other lengths or calendars have other
// keys ([backend.Limit.Counter]), and a rolling limit has one, {k}:60s:roll. The scripts that change them are in package lua. The first
// two keys have the layout of GitHub's rate limiter, so a program that runs GitHub's scripts on {k}:60s shares the limit.
//
// # The client
//
// [New] takes any redis.UniversalClient except redis.Ring, which moves keys between
// servers. Use the settings of Options. The store returns when a call's context ends, and go-redis frees the connection soon
// after that, if ContextTimeoutEnabled is set. A timeout of the client that is shorter ends the call before; the error names it.
// The store lets a dial go on for up to two seconds after the call that needed it. Shared with commands that block,
// as BLPOP does, a client may have no connection left, which the error and Verify say.
//
// Calls to one server that are pending at the same time share pipelines. In a Redis
// Cluster the store makes calls on the client of each node. Hooks see these calls if
// they are set by ClusterClient.OnNewNode, as redisotel's are.
//
// # Failures
//
// The store repeats a call that surely was not carried out, once, after about 10 ms. A
// failing server gets at most one repetition for ten calls, after the first few. A limiter
// states its account again by itself, whatever became of the last statement.
//
// Set cluster-require-full-coverage to "no". Otherwise a cluster answers CLUSTERDOWN for
// every key from the failure of a master until the election of another. While a slot
// moves, new keys are served where it moves to, and others where they are; Redis answers TRYAGAIN only about a counter
// whose keys are on both nodes, while they move.
package redisstore

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/inflight"
)

// Store implements [backend.Store], [backend.Inspector] and [backend.Listener]. Make it with [New] or
// [Open]. It is safe for concurrent use, and several limiters may share it. Between calls
// it runs no goroutine, except to await late replies, and one while a limiter listens.
type Store struct {
	client   redis.UniversalClient   // the one that writes
	replicas []redis.UniversalClient // for Check
	prefix   string
	ack      *ack  // nil = no replicas need to acknowledge
	err      error // a fault of the set-up

	route
	readers []*group // to replicas
	clock   serverClock
	ears    ears

	calls      inflight.Counter // also those whose callers have left
	closeOwned func() error     // closes the clients that Open made; nil = there are none
}

var (
	_ backend.Store     = (*Store)(nil)
	_ backend.Inspector = (*Store)(nil)
	_ backend.Listener  = (*Store)(nil)
)

// Option changes a default of New.
type Option func(*Store)

// WithPrefix puts prefix before every Redis key: prefix{k}:60s, prefix{k}:60s:exp,
// prefix{k}:60s:own. The default is no prefix. A prefix has no braces, blanks or control
// characters. Stores with different prefixes share nothing.
func WithPrefix(prefix string) Option {
	return func(s *Store) { s.prefix = prefix }
}

// WithReplicas sends Check to these clients in rotation, and to the primary if one
// fails. By default the primary answers. Replicas lag, so a Check may miss recent
// charges. For a Redis Cluster pass a second ClusterClient whose ReadOnly option is set.
// Decisions never come from a replica.
func WithReplicas(replicas ...redis.UniversalClient) Option {
	return func(s *Store) { s.replicas = append(s.replicas, replicas...) }
}

// New returns a store over client. It does no I/O. A nil client, a redis.Ring, or an
// option with a bad value is a fault, which Err, reservoir.New and every call return.
func New(client redis.UniversalClient, opts ...Option) *Store {
	s := &Store{client: client}
	s.ears.store, s.ears.deaf = s, make(map[string]error)
	for _, o := range opts {
		o(s)
	}
	if s.err = s.validate(); s.err != nil {
		return s
	}
	s.whole = s.newGroup(client)
	s.cluster, _ = client.(*redis.ClusterClient)
	for _, replica := range s.replicas {
		s.readers = append(s.readers, s.newGroup(replica))
	}
	return s
}

func (s *Store) validate() error {
	for _, c := range append([]redis.UniversalClient{s.client}, s.replicas...) {
		switch c {
		case nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil):
			return errNoClient
		}
		if _, ok := c.(*redis.Ring); ok {
			return errRing
		}
	}
	if strings.ContainsFunc(s.prefix, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '{' || r == '}' }) {
		return errPrefix
	}
	return s.ack.validate(s.client)
}

// Err returns the fault of the client or the options given to New, or nil.
func (s *Store) Err() error { return rejected("open", s.err) }

// Close waits for pending calls, including calls whose callers have left, but no longer than
// the client's timeouts. Later calls are rejected. It closes the client if Open made it.
func (s *Store) Close() error {
	idle := s.calls.Close()
	s.ears.mu.Lock()
	s.ears.stop()
	s.ears.mu.Unlock()
	<-idle
	if s.closeOwned == nil {
		return nil
	}
	return s.closeOwned()
}

// begin counts a call, or returns the error of one that the store cannot make.
func (s *Store) begin(op string) error {
	err := s.err
	if err == nil && !s.calls.Begin() {
		err = errClosed
	}
	return rejected(op, err)
}

func rejected(op string, err error) error {
	if err == nil {
		return nil
	}
	return &backend.Error{Op: op, Class: backend.Rejected, Err: err}
}

// Flags of a script's reply.
const (
	flagLate   = 1
	flagAstray = 2
	flagVoid   = 4
	flagMute   = 32 // the user may not publish
)

// Sync implements backend.Store with one EVALSHA.
func (s *Store) Sync(ctx context.Context, q backend.Statement) (backend.Reply, error) {
	if err := q.Validate(); err != nil {
		return backend.Reply{}, err
	}
	sc := syncScript
	if q.Limit.Rolls {
		sc = rollScript
	}
	c := s.newCall(ctx, sc, q.Key, q.Limit)
	c.spends, c.detached, c.ledgerless = q.Change > 0 || q.Hold > 0, q.Detached, q.Client == "" && q.Hold == 0 && !q.Limit.Rolls
	c.add(q.Client)
	c.numbers(q.Limit.Tokens, q.Limit.Window.Milliseconds(), q.Need,
		bits(q.Exact, q.Deaf, q.Waited, q.Leaving, q.Runs, q.GaveUp, c.clock != nil, q.Hold > 0))
	if q.Limit.Rolls {
		c.roll(&q)
	} else if period := q.End != 0; q.Client != "" || q.Change != 0 || period {
		c.numbers(q.Want, q.Least, q.Life, q.Seq)
		if q.Window.End|q.Change|q.Pace != 0 || period {
			c.end(appendName(c.text, q.Window))
			c.numbers(q.Mine, q.Change, q.Used, q.Idle)
			if !q.Exact || period {
				c.numbers(q.Pace, q.Run)
			}
			if period {
				c.numbers(q.Begin, q.End)
			}
		}
	}
	if q.Hold > 0 {
		c.numbers((q.Hold + time.Millisecond - 1).Milliseconds())
	}
	v, err := s.do(c)
	if err != nil {
		return backend.Reply{}, err
	}
	var all [rollFields]int64 // the reply, with the zeros that it leaves out
	if len(v) < rollFields {
		copy(all[:], v)
		v = all[:]
	}
	if q.Limit.Rolls {
		ahead(v)
	}
	if v[0]&(flagAstray|flagVoid) != 0 {
		return backend.Reply{Now: v[1], Astray: v[0]&flagAstray != 0, Void: v[0]&flagVoid != 0}, nil
	}
	lasted, held, frees := time.Duration(v[8])*time.Millisecond, v[11], int64(0)
	if q.Limit.Rolls {
		lasted, held, frees = 0, v[8], v[11]
	}
	out := backend.Reply{
		State:   state(v, q.Limit, held),
		Now:     v[1],
		Used:    v[4],
		Mine:    v[5],
		Grant:   v[6],
		Clients: v[7],
		Lasted:  lasted,
		Idle:    v[9],
		Called:  v[10],
	}
	out.Frees = microseconds(frees)
	for i := rollFields; i < len(v); i += 2 {
		out.Grants = append(out.Grants, backend.Change{Bucket: v[i], Tokens: v[i+1]})
	}
	return out, nil
}

// roll adds the arguments that statements of rolling limits have.
func (c *call) roll(q *backend.Statement) {
	more := q.Window.Gen|q.Known|q.Idle|q.Pace|q.After != 0 || len(q.Changes) > 0 // a first contact has none of these
	if c.numbers(q.Within.Microseconds()); q.Client != "" || more {
		c.numbers(q.Want, q.Least, q.Life, q.Seq)
	}
	if !more {
		return
	}
	c.numbers(q.Window.Gen, q.Known, q.Idle, q.Pace, q.After)
	changes := c.text
	for i, change := range q.Changes {
		c.spends = c.spends || change.Tokens > 0
		if i > 0 {
			changes = append(changes, ' ')
		}
		changes = strconv.AppendInt(append(strconv.AppendInt(changes, change.Bucket, 10), ' '), change.Tokens, 10)
	}
	c.end(changes)
}

// ahead puts the time of a rolling limit in place of the server's, which may have stepped back.
func ahead(v []int64) { v[1], v[5] = v[1]+v[5], 0 }

// Check implements backend.Store with one EVALSHA, or an EVALSHA_RO to a replica if there are any.
func (s *Store) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	if err := cmp.Or(backend.ValidateKey(key), l.Validate()); err != nil {
		return backend.State{}, err
	}
	v, err := s.do(s.newCheck(ctx, key, l))
	if err != nil {
		return backend.State{}, err
	}
	return checked(v, l), nil
}

// checked reads the reply of a check script.
func checked(v []int64, l backend.Limit) backend.State {
	if !l.Rolls {
		return state(v, l, v[5])
	}
	held := v[7]
	ahead(v)
	out := state(v, l, held)
	out.Frees = microseconds(v[6])
	return out
}

func (s *Store) newCheck(ctx context.Context, key string, l backend.Limit) *call {
	if !l.Rolls {
		return s.newCall(ctx, checkScript, key, l)
	}
	c := s.newCall(ctx, rollCheckScript, key, l)
	c.numbers(l.Window.Milliseconds(), l.Tokens)
	return c
}

// Reset implements backend.Store with one EVALSHA, to the primary.
func (s *Store) Reset(ctx context.Context, key string, l backend.Limit) (backend.Window, error) {
	if err := cmp.Or(backend.ValidateKey(key), l.Validate()); err != nil {
		return backend.Window{}, err
	}
	sc := resetScript
	if l.Rolls {
		sc = rollResetScript
	}
	c := s.newCall(ctx, sc, key, l)
	c.numbers(l.At(time.Now()).Window.Milliseconds())
	v, err := s.do(c)
	if v == nil {
		return backend.Window{}, err
	}
	return backend.Window{End: v[2], Gen: v[3]}, err
}

// Shard names the server of the key, so that a limiter can judge the failures of each
// server separately. In a Redis Cluster it is the address of the slot's master in the
// client's slot table. It is "" for a single server, and in a cluster until the first
// call has succeeded. It does no I/O.
func (s *Store) Shard(key string) string {
	if s.cluster == nil || backend.ValidateKey(key) != nil {
		return ""
	}
	if node := s.node(context.Background(), tagOf(s.prefix, key)); node != nil {
		return node.Options().Addr
	}
	return ""
}

// bits returns the sum of 1, 2, 4 and so on for each that is true.
func bits(all ...bool) (sum int64) {
	for i, is := range all {
		if is {
			sum += 1 << i
		}
	}
	return sum
}

// state reads the first fields of a reply. held is how long the limit is held, us.
func state(v []int64, l backend.Limit, held int64) backend.State {
	out := backend.State{Window: backend.Window{End: v[2], Gen: v[3]}, Remaining: max(l.Tokens-v[4], 0), Held: microseconds(held)}
	if held > 0 {
		out.Remaining = 0
	}
	if v[2] != 0 {
		out.Left = max(microseconds(v[2]*1000-v[1]), 0)
	}
	return out
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
