package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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

// netTimeout bounds each dial, read and write. It is above the limiter's own
// timeout for a call, which is what callers meet.
const netTimeout = 200 * time.Millisecond

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
		a, err := parseAddress(s)
		if err != nil {
			return nil, err
		}
		name := a.name()
		if a.kind == memory {
			name += " " + strconv.Itoa(i+1) // each is a store of its own
		}
		if _, twice := shards[name]; twice {
			return nil, errTwice
		}
		shards[name] = o.one(a, prefix, conns)
	}
	return shards, nil
}

// one opens the store at one address.
func (o *opened) one(a address, prefix string, conns int) backend.Store {
	if a.kind == memory {
		o.private = true
		return memstore.New()
	}
	client := a.client(conns)
	o.clients = append(o.clients, client)
	return redisstore.New(client, redisstore.WithPrefix(prefix), redisstore.WithWarnings(nil)) // standard error is for errors
}

// client is set up to fail soon and to leave repeating to the store.
func (a address) client(conns int) redis.UniversalClient {
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if a.kind == cluster {
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: a.hosts, Username: a.user, Password: a.password,
			MaxRetries: -1, DialerRetries: 1,
			DialTimeout: netTimeout, ReadTimeout: netTimeout, WriteTimeout: netTimeout,
			ContextTimeoutEnabled: true, PoolSize: conns, MaintNotificationsConfig: quiet,
		})
	}
	return redis.NewClient(&redis.Options{
		Addr: a.hosts[0], DB: a.db, Username: a.user, Password: a.password,
		MaxRetries: -1, DialerRetries: 1,
		DialTimeout: netTimeout, ReadTimeout: netTimeout, WriteTimeout: netTimeout,
		ContextTimeoutEnabled: true, PoolSize: conns, MaintNotificationsConfig: quiet,
		TLSConfig: a.tls(),
	})
}

// tls verifies the server's name against the system's authorities, always.
func (a address) tls() *tls.Config {
	if a.kind != secure {
		return nil
	}
	host, _, _ := net.SplitHostPort(a.hosts[0])
	return &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
}

// Close closes the connections.
func (o *opened) Close() error {
	var err error
	for _, c := range o.clients {
		err = errors.Join(err, c.Close())
	}
	return err
}
