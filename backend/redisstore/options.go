package redisstore

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/sharding"
)

// Faults of a URL, by its part. Their texts repeat none of it, because any part that does
// not parse may belong to a password.
var (
	errEmpty  = errors.New("it is empty")
	errScheme = errors.New("its scheme: want redis://, redis-cluster:// or redis-sentinel://, or rediss… for TLS")
	errLogin  = errors.New("its user and password: want user:password@host, with %XX for all but letters and digits")
	errUser   = errors.New("its user and password: the user has no password (write a password without a user as :password@host)")
	errHost   = errors.New("its host: want host or host:port, and an IPv6 address in []")
	errHosts  = errors.New("its host: want one, because only a cluster and sentinels have several")
	errPort   = errors.New("its port: want 1 to 65535")
	errDB     = errors.New("its path: want nothing or /number, the database (write a / in the password as %2F)")
	errMaster = errors.New("its path: want /name of the master, for sentinels")
)

// Options returns options for a client that suits a store: it fails quickly, obeys
// contexts, and leaves repetition to the store. Change them as needed and make the
// client with [redis.NewUniversalClient]. A URL has one of these forms:
//
//	redis://user:password@host:6379/0
//	redis-cluster://user:password@host1:6379,host2:6379
//	redis-sentinel://user:password@host1:26379,host2:26379/master/0
//
// With rediss, rediss-cluster and rediss-sentinel, the client uses TLS 1.2 or later and
// verifies the servers' names. User, password, port and database are optional. If the
// Sentinels have a login of their own, set SentinelUsername and SentinelPassword. No
// error repeats a part of the URL.
func Options(rawURL string) (*redis.UniversalOptions, error) {
	const quick = 200 * time.Millisecond
	o := &redis.UniversalOptions{
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: 500 * time.Millisecond, ReadTimeout: quick, WriteTimeout: quick,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if err := parse(o, rawURL); err != nil {
		return nil, fmt.Errorf("reservoir: redis URL: %w", err)
	}
	return o, nil
}

func parse(o *redis.UniversalOptions, rawURL string) error {
	scheme, rest, _ := strings.Cut(rawURL, "://")
	authority, path, _ := strings.Cut(rest, "/")
	base, kind, _ := strings.Cut(scheme, "-")
	port := "6379"
	switch {
	case rawURL == "":
		return errEmpty
	case strings.Contains(path, "@"): // the password has a slash
		return errLogin
	case base == "rediss":
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	case base != "redis":
		return errScheme
	}
	switch kind {
	case "":
		if strings.Contains(authority[strings.LastIndexByte(authority, '@')+1:], ",") {
			return errHosts
		}
	case "cluster":
		o.IsClusterMode = true
	case "sentinel":
		if o.MasterName, path, _ = strings.Cut(path, "/"); o.MasterName == "" {
			return errMaster
		}
		port = "26379"
	default:
		return errScheme
	}
	if err := hosts(o, authority, port); err != nil || path == "" {
		return err
	}
	db, err := strconv.ParseUint(path, 10, 16)
	if o.DB = int(db); err != nil || o.IsClusterMode {
		return errDB
	}
	return nil
}

// hosts reads user:password@host:port,host:port.
func hosts(o *redis.UniversalOptions, authority, port string) error {
	at := strings.LastIndexByte(authority, '@') + 1
	login, err := url.Parse("redis://" + authority[:at] + "host")
	if err != nil || strings.Count(authority[:at], "@") > 1 {
		return errLogin
	}
	o.Username = login.User.Username()
	o.Password, _ = login.User.Password()
	if at > 0 && o.Password == "" { // the client would not log in at all
		return errUser
	}
	for host := range strings.SplitSeq(authority[at:], ",") {
		own := port
		if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
			host, own = host[:i], cmp.Or(host[i+1:], port)
		}
		u, err := url.Parse("redis://" + host)
		if err != nil || u.Hostname() == "" || strings.ContainsAny(host, "?#") || host[0] != '[' && strings.Contains(host, ":") {
			return errHost
		}
		n, err := strconv.ParseUint(own, 10, 16)
		if err != nil || n == 0 {
			return errPort
		}
		o.Addrs = append(o.Addrs, net.JoinHostPort(u.Hostname(), fmt.Sprint(n)))
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
