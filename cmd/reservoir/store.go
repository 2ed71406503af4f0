package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/sharding"
)

// init silences the client's own logger, because the client also returns errors, and
// standard error is for our one line.
func init() { logging.Disable() }

// opened is a store with the connections to close after use.
type opened struct {
	backend.Store
	parts []part // the shards
	names []string
}

// part is one of the stores.
type part struct {
	name   string // the same for every process that is given the same address
	store  backend.Store
	client redis.UniversalClient // nil = the store is in this process
}

// named adds the part's name to its error.
func (p part) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s", p.name, oneLine(err))
}

// memory is the address of a store in this process.
const memory = "memory"

// open returns the store at the addresses: memory for none, shards for several. It does
// no I/O, so an error is a usage error and leaves nothing to close. conns bounds the
// calls in flight.
func open(where []string, prefix string, conns int) (*opened, error) {
	if len(where) == 0 {
		where = []string{memory}
	}
	o, shards := new(opened), make(map[string]backend.Store)
	for i, address := range where {
		p, err := newPart(address, i, prefix, conns)
		if err != nil {
			return nil, err
		}
		o.parts, o.names = append(o.parts, p), append(o.names, p.name)
		shards[p.name] = p.store
	}
	if len(shards) < len(where) {
		return nil, usagef("bad value for flag -store: the same store twice")
	}
	var err error
	if o.Store = o.parts[0].store; len(shards) > 1 {
		o.Store, err = sharding.New(shards)
	}
	return o, err
}

func newPart(address string, i int, prefix string, conns int) (part, error) {
	if address == memory {
		return part{name: fmt.Sprint(memory, " ", i+1), store: memstore.New()}, nil // each is a separate store
	}
	options, err := redisstore.Options(address)
	if err != nil {
		return part{}, usagef("bad value for flag -store: %s", strings.TrimPrefix(oneLine(err), "redis URL: "))
	}
	options.PoolSize = conns
	client := redis.NewUniversalClient(options)
	store := redisstore.New(client, redisstore.WithPrefix(prefix))
	return part{nameOf(options), store, client}, judged("prefix", store.Err())
}

// nameOf names a store for people and for sharding, without credentials.
func nameOf(o *redis.UniversalOptions) string {
	name := strings.Join(o.Addrs, ",")
	if o.MasterName != "" {
		name += "/" + o.MasterName
	}
	if o.DB != 0 {
		name += fmt.Sprint("/", o.DB)
	}
	return name
}

// lookTimeout bounds a look at a store, dialling included.
const lookTimeout = 5 * time.Second

// reach reads a key from the parts until one answers, and returns the first error if none
// does. Commands call it first, so that they fail before they have done anything.
func (o *opened) reach(whole context.Context, key string, l reservoir.Limit) error {
	ctx, cancel := context.WithTimeout(whole, lookTimeout)
	defer cancel()
	var errs []error
	for _, p := range o.parts {
		_, err := p.store.Check(ctx, key, l)
		if err == nil || whole.Err() != nil {
			return nil // the caller checks the context
		}
		errs = append(errs, err)
	}
	return o.parts[0].named(errs[0])
}

// close closes the connections. Everything has been answered, so errors do not matter.
func (o *opened) close() {
	for _, p := range o.parts {
		if p.client != nil {
			_ = p.client.Close()
		}
	}
}
