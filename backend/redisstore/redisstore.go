// Package redisstore is the store in Redis 7.0 or later: a single server, Sentinel, or
// Cluster, by a client of go-redis. Open makes both by a URL, Options the client's
// options. OpenShards spreads keys over several servers.
//
// A limit on key k is three Redis keys, which share a slot: {k} counts the tokens
// charged in the window, {k}:exp is the window's stored end, {k}:own is the ledger
// of what each client was granted. The first and the last expire a second after the
// window, the end a window's length later still: so a call with another length is
// told the open one's. The scripts that change them are in package lua. The first two
// are those of GitHub's rate limiter, so a program that runs its scripts on the same
// keys shares the same limit.
//
// # The client
//
// Any redis.UniversalClient serves but redis.Ring, which moves keys between servers.
// Give it the options of Options, above all short timeouts: the store bounds every
// call by its context even where go-redis does not, but cannot give a connection back
// before go-redis does. A connection that is being made outlives the call that needed
// it, for up to two seconds: DialTimeout may be longer than a caller waits, and should
// be three round trips or more.
//
// Calls to one server that are pending at the same time share pipelines. Those of a
// Redis Cluster are made on the node's client: hooks see them if they are set by
// ClusterClient.OnNewNode, as those of redisotel are.
//
// # Failures
//
// A call that surely was not carried out is repeated within its context, with growing
// pauses, and so is a sync whose outcome is unknown. To a server that fails no more
// than one call in ten is a repetition, beside a few at first.
//
// Between the failure of a master and the election of another a cluster answers
// CLUSTERDOWN for every key, unless cluster-require-full-coverage is "no": set it.
// While a slot moves, Redis answers TRYAGAIN for keys whose parts are on both sides,
// and for new ones: move slots in small steps and no caller sees it.
package redisstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
)

// Store implements backend.Store and backend.Inspector. Make it with New. It is safe
// for concurrent use; several limiters may share it. It runs no goroutine between calls
// but for a reply that is still to come and for a look at the server after the first
// (WithWarnings).
type Store struct {
	client   redis.UniversalClient   // the one that writes
	replicas []redis.UniversalClient // for Check
	prefix   string
	ack      ack
	acked    bool          // ack was asked for, if with values that make no sense
	warn     func(Warning) // nil = nobody is told
	err      error         // a fault of the set-up

	route
	readers  []*group // to replicas
	nextRead atomic.Uint32
	clock    serverClock
	warned   atomic.Bool

	owned   []redis.UniversalClient // to close
	closing sync.RWMutex
	closed  bool           // guarded by closing
	pending sync.WaitGroup // calls, and their undoing. From 0 it grows under closing
}

var (
	_ backend.Store     = (*Store)(nil)
	_ backend.Inspector = (*Store)(nil)
)

// Option changes a default of New.
type Option func(*Store)

// WithPrefix puts prefix before every Redis key: prefix{k}, prefix{k}:exp,
// prefix{k}:own. The default is none. It may hold no braces, blanks or control
// characters. Stores with different prefixes share nothing.
func WithPrefix(prefix string) Option {
	return func(s *Store) { s.prefix = prefix }
}

// WithReplicas sends Check to these clients in turn, and to the primary when one
// fails or refuses; by default the primary answers. Replicas lag: a Check may miss what was
// charged a moment ago. For a Redis Cluster pass a second ClusterClient whose
// ReadOnly option is set. Decisions never come from a replica.
func WithReplicas(replicas ...redis.UniversalClient) Option {
	return func(s *Store) { s.replicas = append(s.replicas, replicas...) }
}

// New returns a store over client. It does no I/O. A redis.Ring, a nil client or
// a bad prefix is a fault that Err, reservoir.New and every call report.
func New(client redis.UniversalClient, opts ...Option) *Store {
	s := &Store{client: client, warn: logWarning}
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
	if !s.acked {
		return nil
	}
	return s.ack.validate(s.client)
}

// Err returns the fault of the set-up, if any, before a call meets it.
func (s *Store) Err() error {
	if s.err == nil {
		return nil
	}
	return &backend.Error{Op: "open", Class: backend.Rejected, Err: s.err}
}

// Close waits for the calls that are under way, also for those whose callers have
// left, and for the return of what those were charged: as long as the client's
// timeouts at most. Later calls are rejected. It closes the client if Open made it.
func (s *Store) Close() error {
	s.closing.Lock()
	owned := s.owned
	s.closed, s.owned = true, nil
	s.closing.Unlock()
	s.pending.Wait()
	var errs []error
	for _, client := range owned {
		errs = append(errs, client.Close())
	}
	return errors.Join(errs...)
}

// begin counts a call, unless the store is closed or cannot be used at all.
func (s *Store) begin() error {
	if s.err != nil {
		return s.err
	}
	s.closing.RLock()
	defer s.closing.RUnlock()
	if s.closed {
		return errClosed
	}
	s.pending.Add(1)
	return nil
}

// Flags of a script's reply.
const (
	flagLate     = 1
	flagCarried  = 2
	flagLearning = 4
	flagAllowed  = 8
)

// Sync implements backend.Store with one EVALSHA. It is repeated, within ctx,
// when it fails or its reply is lost.
func (s *Store) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	var out backend.SyncReply
	if err := r.Validate(); err != nil {
		return out, err
	}
	leaving := int64(0)
	if r.Leaving {
		leaving = 1
	}
	args := []any{r.Client, r.Limit.Tokens, r.Limit.Window.Milliseconds(), r.Want, r.Need, r.Least, r.Strand}
	if r.Peers|r.Pace|int64(r.End|r.Next)|leaving|int64(r.Window) != 0 { // a first contact has none of these
		args = append(args, r.Peers, r.Pace, int64(r.End), int64(r.Next), leaving, int64(r.Window), r.Granted, r.Returned, r.Debt, r.Total, r.Used)
	}
	v, err := s.do(ctx, syncScript, r.Key, nil, args...)
	if err != nil {
		return out, err
	}
	if len(v) == firstContact {
		return backend.SyncReply{State: state(v), Grant: v[5], Granted: v[5], Total: v[5], Clients: 1}, nil
	}
	if v[4] != 0 { // a window of another length: nothing was done
		return backend.SyncReply{State: state(v), Granted: r.Granted, Returned: r.Returned, Debt: r.Debt, Clients: 1}, nil
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
	}, nil
}

// Take implements backend.Store with one EVALSHA. When ctx ends before the reply
// comes, the tokens are given back as soon as it does; when it never comes they
// stay charged until the window ends.
func (s *Store) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	var out backend.TakeReply
	if err := r.Validate(); err != nil {
		return out, err
	}
	v, err := s.do(ctx, takeScript, r.Key, s.undoOf(r), r.Tokens, r.Limit.Tokens, r.Limit.Window.Milliseconds(), int64(r.End), int64(r.Next))
	if err != nil {
		return out, err
	}
	return backend.TakeReply{State: state(v), Allowed: v[0]&flagAllowed != 0}, nil
}

// Check implements backend.Store with one EVALSHA_RO, to a replica if there are any.
func (s *Store) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	if err := backend.ValidateKey(key); err != nil {
		return backend.State{}, err
	}
	if err := l.Validate(); err != nil {
		return backend.State{}, err
	}
	v, err := s.do(ctx, checkScript, key, nil, l.Tokens, l.Window.Milliseconds())
	if err != nil {
		return backend.State{}, err
	}
	return state(v), nil
}

// Refund implements backend.Store with one EVALSHA. It is repeated, within ctx, when
// it fails or its reply is lost.
func (s *Store) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	v, err := s.do(ctx, refundScript, r.Key, nil, r.Client, r.Total, int64(r.Window))
	if err != nil {
		return 0, err
	}
	return v[2], nil
}

// Reset implements backend.Store with one EVALSHA, to the primary.
func (s *Store) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	if err := r.Validate(); err != nil {
		return backend.State{}, err
	}
	v, err := s.do(ctx, resetScript, r.Key, nil, r.Limit.Tokens, r.Limit.Window.Milliseconds(), int64(r.End), int64(r.Next))
	if err != nil {
		return backend.State{}, err
	}
	return state(v), nil
}

// Shard names the part of the store that the key is on, so that a limiter can hold
// the parts apart whose failures are not each other's: in a Redis Cluster the
// address of the slot's master, as far as known. It is "" for a single server, and in
// a cluster until the first call has been served. It does no I/O.
func (s *Store) Shard(key string) string {
	if node := s.node(context.Background(), keysOf(s.prefix, key)[0]); node != nil {
		return node.Options().Addr
	}
	return ""
}

// state reads the fields that the replies of all scripts but refund begin with.
func state(v []int64) backend.State {
	return backend.State{
		Window:    backend.Window(v[2]),
		Left:      max(time.Duration(v[2]*1000-v[1])*time.Microsecond, 0),
		Remaining: v[3],
		Length:    time.Duration(v[4]) * time.Millisecond,
	}
}
