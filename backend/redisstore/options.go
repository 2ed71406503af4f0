package redisstore

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/sharding"
)

// errURL repeats no part of a URL, because any part that does not parse may belong to a
// password. The errors of go-redis' parsers repeat such parts.
var errURL = errors.New("reservoir: redis URL: want redis://[user:password@]host[:port][/db], unix://[user:password@]/path, " +
	"redis-cluster://…[?addr=host:port] or redis-sentinel://…?master_name=name, rediss… for TLS, and in a password %XX for all " +
	"but letters and digits (it is not shown, because it may hold a password)")

// Options returns options for a client that suits a store: it obeys contexts, leaves repetition
// to the store, and drops connections that have been idle for a minute. A call ends with its
// context, which is the limiter's fetch timeout, or after 5 s, in a cluster 2 s, and a dial after 2 s. Change them as needed and make the
// client with [redis.NewUniversalClient]. The scheme of the URL chooses a parser of
// go-redis: [redis.ParseURL], [redis.ParseClusterURL] or [redis.ParseFailoverURL].
//
//	redis://user:password@host:6379/0
//	unix://user:password@/run/redis.sock?db=0
//	redis-cluster://user:password@host1:6379?addr=host2:6379&addr=host3:6379
//	redis-sentinel://host1:26379/0?master_name=name&addr=host2:26379&username=user&password=password
//
// With rediss, rediss-cluster and rediss-sentinel, the client uses TLS 1.2 or later and
// verifies each server's own name. User, password, port and database are optional, but a
// user needs a password. A user before the host of a Sentinel logs in to the Sentinels
// only. Any other parameter is an error: set such options before you make the client. No
// error repeats a part of the URL.
func Options(rawURL string) (*redis.UniversalOptions, error) {
	u, err := url.Parse(rawURL)
	if err != nil || ambiguous(rawURL, u) {
		return nil, errURL
	}
	var kind string
	u.Scheme, kind, _ = strings.Cut(u.Scheme, "-")
	most := 5 * time.Second // the call's own context ends it sooner
	if kind == "cluster" {
		most = connectTime // for so long go-redis asks a node that hangs where the slots are
	}
	o := &redis.UniversalOptions{
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: connectTime, ReadTimeout: most, WriteTimeout: most,
		ConnMaxIdleTime:          time.Minute, // load balancers forget connections, some after four minutes, without a word
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		IsClusterMode:            kind == "cluster",
	}
	if u.Scheme == "rediss" {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if parse(o, u, kind) != nil || o.DB < 0 {
		return nil, errURL
	}
	return o, nil
}

// parameters are those that a URL may have after a question mark.
var parameters = []string{"addr", "db", "master_name", "username", "password"}

// ambiguous reports whether the URL has what go-redis' parsers let pass, although it may
// be half of a password, a login without a password, or a server that is not verified.
func ambiguous(rawURL string, u *url.URL) bool {
	password, _ := u.User.Password()
	q, err := url.ParseQuery(u.RawQuery)
	for name := range q {
		if !slices.Contains(parameters, name) {
			return true
		}
	}
	return strings.Count(rawURL, "@") > 1 || strings.Contains(rawURL, "@") != (password != "") ||
		strings.Contains(rawURL, "#") || err != nil || (q.Has("username") || q.Has("password")) && q.Get("password") == "" ||
		strings.Contains(u.Host, ",") || strings.Count(u.Host, ":") > 1 && u.Host[0] != '[' || (u.Hostname() == "") != (u.Scheme == "unix")
}

// parse fills in what a parser of go-redis finds in the URL.
func parse(o *redis.UniversalOptions, u *url.URL, kind string) error {
	switch kind {
	case "":
		p, err := redis.ParseURL(u.String())
		if err != nil {
			return err
		}
		o.Addrs, o.Username, o.Password, o.DB = []string{p.Addr}, p.Username, p.Password, p.DB
	case "cluster":
		p, err := redis.ParseClusterURL(u.String())
		if err != nil || strings.Trim(u.Path, "/") != "" { // a cluster has no databases
			return cmp.Or(err, errURL)
		}
		o.Addrs, o.Username, o.Password = p.Addrs, p.Username, p.Password
	case "sentinel":
		if u.Port() == "" {
			u.Host = strings.TrimSuffix(u.Host, ":") + ":26379" // the parser's is that of Redis
		}
		p, err := redis.ParseFailoverURL(u.String())
		if err != nil || p.MasterName == "" {
			return cmp.Or(err, errURL)
		}
		o.Addrs, o.MasterName, o.SentinelUsername, o.SentinelPassword = p.SentinelAddrs, p.MasterName, p.SentinelUsername, p.SentinelPassword
		o.Username, o.Password, o.DB = p.Username, p.Password, p.DB
	default:
		return errURL
	}
	return nil
}

// Open returns a store for the URL, with a client made from [Options]. Close closes
// the client too. Open does no I/O.
func Open(rawURL string, opts ...Option) (*Store, error) { return open([]string{rawURL}, opts) }

// open returns a store on a primary and its replicas.
func open(urls []string, opts []Option) (*Store, error) {
	var all []*redis.UniversalOptions
	for i, u := range urls {
		o, err := Options(u)
		if err != nil {
			return nil, err
		}
		o.ReadOnly = i > 0 && o.IsClusterMode
		all = append(all, o)
	}
	var clients []redis.UniversalClient // made when no URL is at fault, so that none is left open
	for _, o := range all {
		clients = append(clients, redis.NewUniversalClient(o))
	}
	if len(clients) == 0 {
		return nil, errNoClient
	}
	s := New(clients[0], append(opts[:len(opts):len(opts)], WithReplicas(clients[1:]...))...)
	s.closeOwned = sync.OnceValue(func() (err error) {
		for _, client := range clients {
			err = errors.Join(err, client.Close())
		}
		return err
	})
	if s.err != nil {
		return nil, errors.Join(s.Err(), s.Close())
	}
	return s, nil
}

// Shards is a store over several servers. Make it with OpenShards.
type Shards struct {
	*sharding.Store
	stores []*Store
}

// OpenShards returns a store over shards. The map has, for each shard's name, the URLs
// of a primary and then of its replicas, if any. The name decides which keys belong to
// the shard (package sharding). Primaries decide requests, and replicas answer Check.
// OpenShards does no I/O.
func OpenShards(shards map[string][]string, opts ...Option) (*Shards, error) {
	all, stores := new(Shards), make(map[string]backend.Store, len(shards))
	for name, urls := range shards {
		s, err := open(urls, opts)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("shard %q: %w", name, err), all.Close())
		}
		stores[name], all.stores = s, append(all.stores, s)
	}
	var err error
	if all.Store, err = sharding.New(stores); err != nil {
		return nil, errors.Join(err, all.Close())
	}
	return all, nil
}

// Close closes all shards, as [Store.Close] does.
func (s *Shards) Close() error {
	var errs []error
	for _, store := range s.stores {
		errs = append(errs, store.Close())
	}
	return errors.Join(errs...)
}
