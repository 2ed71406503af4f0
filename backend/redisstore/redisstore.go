// Package redisstore stores limits in Redis 7.0 or later: one server, Sentinel or
// Cluster, through a client of go-redis. [Open] makes the client and the store from a
// URL, [Options] only the client's options. [OpenShards] spreads keys over servers.
//
// A limit on key k is three Redis keys in one slot: {k} counts the tokens charged in
// the window, {k}:exp holds the window's end, and {k}:own is the ledger of the tokens
// granted to each client. {k} and {k}:own expire a second after the window. {k}:exp
// expires a window's length later still, so that it shows how long the window is. The
// scripts that change these keys are in package lua. A rolling limit has one key, {k}:roll. The first two keys have the layout
// of GitHub's rate limiter, so a program that runs GitHub's scripts shares the limit.
//
// # The client
//
// [New] takes any redis.UniversalClient except redis.Ring, which moves keys between
// servers. Use the settings of Options, above all the short timeouts. The store returns
// when a call's context ends, but go-redis may keep the connection until its own timeout.
// The store lets a dial go on for up to two seconds after the call that needed it, so
// DialTimeout may be longer than a caller waits. It should be at least three round trips.
//
// Calls to one server that are pending at the same time share pipelines. In a Redis
// Cluster the store makes calls on the client of each node. Hooks see these calls if
// they are set by ClusterClient.OnNewNode, as redisotel's are.
//
// # Failures
//
// The store repeats a call that surely was not carried out, once, after about 10 ms. A
// failing server gets at most one repetition for ten calls, after the first few. A limiter
// makes a statement again by itself, whatever became of it.
//
// Set cluster-require-full-coverage to "no". Otherwise a cluster answers CLUSTERDOWN for
// every key from the failure of a master until the election of another. While a slot
// moves, Redis answers TRYAGAIN for new keys and for limits whose keys are on both
// nodes. Move slots in small steps, so that no caller sees it.
package redisstore

import (
	"cmp"
	"context"
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

// WithPrefix puts prefix before every Redis key: prefix{k}, prefix{k}:exp,
// prefix{k}:own. The default is no prefix. A prefix has no braces, blanks or control
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
	flagLate     = 1
	flagCarried  = 2
	flagLearning = 4
	flagAllowed  = 8
	flagDone     = flagAllowed // of settle
	flagConflict = 16
	flagMute     = 32  // the user may not publish
	flagIdle     = 64  // of take
	flagCalled   = 128 // of take
)

// Sync implements backend.Store with one EVALSHA.
func (s *Store) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	var out backend.SyncReply
	if r.Limit.Rolls {
		return s.syncRolling(ctx, r)
	}
	args := []any{r.Client, r.Limit.Tokens, r.Limit.Window.Milliseconds(), r.Want, r.Need, r.Least, bits(r.Exact, r.Idle < 0, r.Waited)}
	if r.Leaving || r.Peers|r.Pace|int64(r.End|r.Next|r.Window)|int64(r.OpenLength) != 0 { // a first contact has none of these
		args = append(args, r.Peers, r.Pace, int64(r.End), int64(r.Next), r.Leaving, int64(r.Window), r.Granted, r.Returned, r.Debt, r.Total, r.Used, r.OpenLength.Milliseconds(), max(r.Idle, 0), r.Run)
	}
	v, err := s.do(ctx, request{script: syncScript, fault: r.Validate(), key: r.Key, args: args, detached: r.Detached})
	if err != nil {
		return out, err
	}
	if len(v) == firstContact {
		return backend.SyncReply{State: state(v), Grant: v[5], Granted: v[5], Total: v[5], Clients: 1}, nil
	}
	if v[0]&flagConflict != 0 {
		return backend.SyncReply{State: state(v), Granted: r.Granted, Returned: r.Returned, Debt: r.Debt, Clients: v[10]}, nil
	}
	return backend.SyncReply{
		State:      state(v),
		Grant:      v[5],
		Recovered:  v[6],
		Granted:    v[7],
		Returned:   v[8],
		Debt:       v[9],
		Clients:    v[10],
		Reasserted: v[11],
		Lasted:     time.Duration(v[12]) * time.Millisecond,
		Carried:    v[0]&flagCarried != 0,
		Total:      v[13],
		Learning:   v[0]&flagLearning != 0,
		Over:       v[14],
		Idle:       v[15],
		Called:     v[16],
	}, nil
}

// Take implements backend.Store with one EVALSHA. If ctx ends before the reply comes,
// the tokens may stay charged until the window ends. The reply to a detached Take that was
// sent is awaited beyond the deadline, for two seconds or the client's timeouts.
func (s *Store) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	q := request{script: takeScript, fault: r.Validate(), key: r.Key, detached: r.Detached}
	if r.Limit.Rolls {
		q = q.rolling(takeRolling, r.Limit, r.OpenLength, r.Tokens, min(r.Within, r.Limit.Window/4).Microseconds())
	} else {
		q.args = []any{r.Tokens, r.Limit.Tokens, r.Limit.Window.Milliseconds(), int64(r.End), int64(r.Next), r.OpenLength.Milliseconds()}
	}
	v, err := s.do(ctx, q)
	if v == nil {
		return backend.TakeReply{}, err
	}
	flags := v[0]
	return backend.TakeReply{State: state(v), Allowed: flags&flagAllowed != 0, Idle: flags&flagIdle != 0, Called: flags&flagCalled != 0}, err
}

// Check implements backend.Store with one EVALSHA_RO, to a replica if there are any.
func (s *Store) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	q := request{script: checkScript, fault: cmp.Or(backend.ValidateKey(key), l.Validate()), key: key, args: []any{l.Tokens, l.Window.Milliseconds()}}
	if l.Rolls {
		q = q.rolling(checkRolling, l, 0, 0)
	}
	v, err := s.do(ctx, q)
	return state(v), err
}

// Settle implements backend.Store with one EVALSHA.
func (s *Store) Settle(ctx context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	q, over := request{script: settleScript, fault: r.Validate(), key: r.Key, args: []any{r.Tokens, r.Limit, int64(r.Window)}}, 2
	if r.Rolling != 0 {
		q, over = q.rolling(settleRolling, backend.Limit{Tokens: r.Limit, Window: r.Rolling}, 0, r.Tokens, int64(r.Window)), 3
	}
	v, err := s.do(ctx, q)
	if err != nil {
		return backend.SettleReply{}, err
	}
	return backend.SettleReply{Open: v[0]&flagDone != 0, Over: v[over]}, nil
}

// Reset implements backend.Store with one EVALSHA, to the primary.
func (s *Store) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	q := request{script: resetScript, fault: r.Validate(), key: r.Key}
	if r.Limit.Rolls {
		q = q.rolling(resetRolling, r.Limit, r.OpenLength)
	} else {
		q.args = []any{r.Limit.Tokens, r.Limit.Window.Milliseconds(), int64(r.End), int64(r.Next), r.OpenLength.Milliseconds()}
	}
	v, err := s.do(ctx, q)
	return state(v), err
}

// Shard names the server of the key, so that a limiter can judge the failures of each
// server separately. In a Redis Cluster it is the address of the slot's master in the
// client's slot table. It is "" for a single server, and in a cluster until the first
// call has succeeded. It does no I/O.
func (s *Store) Shard(key string) string {
	if node := s.node(context.Background(), keysOf(s.prefix, key)[0]); node != nil {
		return node.Options().Addr
	}
	return ""
}

// bits returns the sum of 1, 2, 4 and so on for each that is true.
func bits(all ...bool) (sum int) {
	for i, is := range all {
		if is {
			sum += 1 << i
		}
	}
	return sum
}

// state reads the first fields of a reply. All scripts except settle have them. No reply
// is the zero State.
func state(v []int64) backend.State {
	if v == nil {
		return backend.State{}
	}
	out := backend.State{
		Window:    backend.Window(v[2]),
		Left:      max(time.Duration(v[2]*1000-v[1])*time.Microsecond, 0),
		Remaining: v[3],
		Length:    time.Duration(v[4]) * time.Millisecond,
		Conflict:  v[0]&flagConflict != 0,
	}
	if len(v) == rolled || len(v) == syncRolling.fields {
		out.Left, out.Frees = time.Duration(v[5])*time.Microsecond, time.Duration(v[6])*time.Microsecond
	}
	return out
}
