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
)

// init silences the client's own logger, because the client also returns errors, and
// standard error is for our one line.
func init() { logging.Disable() }

// opened is a store with the connections to close after use.
type opened struct {
	backend.Store
	name   string
	client redis.UniversalClient // nil = the store is in this process
}

// memory is the address of a store in this process.
const memory = "memory"

// open returns the store at an address. It does no I/O, so an error is a usage error and
// leaves nothing to close. conns bounds the calls in flight.
func open(address, prefix string, conns int) (*opened, error) {
	if address == memory {
		return &opened{Store: memstore.New(), name: memory}, nil
	}
	options, err := redisstore.Options(address)
	if err != nil {
		return nil, usagef("bad value for flag -store: %s", strings.TrimPrefix(oneLine(err), "redis URL: "))
	}
	options.PoolSize = conns
	client := redis.NewUniversalClient(options)
	store := redisstore.New(client, redisstore.WithPrefix(prefix))
	return &opened{store, nameOf(options), client}, judged("prefix", store.Err())
}

// named adds the store's name to its error.
func (o *opened) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s", o.name, oneLine(err))
}

// nameOf names a store for people, without credentials.
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

// reach reads a key, to see whether the store answers. Commands call it first, so that they
// fail before they have done anything.
func (o *opened) reach(whole context.Context, key string, l reservoir.Limit) error {
	ctx, cancel := context.WithTimeout(whole, lookTimeout)
	defer cancel()
	_, err := o.Check(ctx, key, backend.Limit(l))
	if whole.Err() != nil {
		return nil // the caller checks the context
	}
	return o.named(err)
}

// close closes the connections. Everything has been answered, so errors do not matter.
func (o *opened) close() {
	if o.client != nil {
		_ = o.client.Close()
	}
}
