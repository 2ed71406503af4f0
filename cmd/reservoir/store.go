package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/sharding"
)

// init silences the client's own logger: what it knows comes back as errors,
// and standard error is for one line of ours.
func init() { redis.SetLogger(silence{}) }

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

var errTwice = errors.New("the same store twice")

// opened is a store and what to close after it.
type opened struct {
	backend.Store
	clients []redis.UniversalClient
	private bool // a part at least is this process' own
}

// open makes the store of the addresses, several being shards. It does no I/O, so
// what goes wrong was asked for wrongly, by the flag of that name. conns is how many calls may be under way
// at a time.
func open(flag string, where []string, prefix string, conns int) (*opened, error) {
	o := new(opened)
	shards, err := o.all(where, prefix, conns)
	switch {
	case err == nil && len(shards) > 1:
		o.Store, err = sharding.New(shards)
	case err == nil:
		for _, o.Store = range shards { // the only one
		}
	}
	if err != nil {
		_ = o.Close()
		return nil, usagef("bad value for flag -%s: %s", flag, oneLine(err))
	}
	return o, nil
}

// all opens the stores at the addresses, by their names.
func (o *opened) all(where []string, prefix string, conns int) (map[string]backend.Store, error) {
	shards := make(map[string]backend.Store, len(where))
	for i, s := range where {
		store, name, err := o.one(s, i, prefix, conns)
		if err != nil {
			return nil, err
		}
		if _, twice := shards[name]; twice {
			return nil, errTwice
		}
		shards[name] = store
	}
	return shards, nil
}

// one opens the i-th store, and returns its name among shards, the same for every
// process that is given the same address.
func (o *opened) one(where string, i int, prefix string, conns int) (backend.Store, string, error) {
	if where == memory {
		o.private = true
		return memstore.New(), fmt.Sprint(memory, " ", i+1), nil // each is a store of its own
	}
	options, err := redisstore.Options(where)
	if err != nil {
		return nil, "", fmt.Errorf("%w, or memory", err)
	}
	options.PoolSize = conns
	client := redis.NewUniversalClient(options)
	o.clients = append(o.clients, client)
	return redisstore.New(client, redisstore.WithPrefix(prefix), redisstore.WithWarnings(nil)), nameOf(options), nil // standard error is for errors
}

// memory is the address of a store of the process' own.
const memory = "memory"

// nameOf identifies a store to people and among shards, without credentials.
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

// Close closes the connections.
func (o *opened) Close() error {
	var err error
	for _, c := range o.clients {
		err = errors.Join(err, c.Close())
	}
	return err
}
