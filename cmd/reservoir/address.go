package main

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// address is where a store is: what one -store flag says.
type address struct {
	kind     kind
	hosts    []string // host:port
	db       int
	user     string
	password string
}

type kind uint8

const (
	memory kind = iota
	single
	secure // single, over TLS
	cluster
)

var schemes = map[string]kind{"redis": single, "rediss": secure, "redis-cluster": cluster}

// Faults of an address. They are fixed texts, because every part of a URL that
// cannot be understood may be part of a password.
var (
	errScheme   = errors.New("want memory, redis://, rediss:// or redis-cluster://")
	errUserinfo = errors.New("the user or the password has a bare % or @: write %25 and %40")
	errUser     = errors.New("a user without a password (a password without a user is written :password@host)")
	errHost     = errors.New("want host or host:port, the port from 1 to 65535 (a / in the password is written %2F)")
	errHosts    = errors.New("only redis-cluster:// takes several hosts")
	errDB       = errors.New("want nothing or /number, the database, after the host (a / in the password is written %2F)")
	errNoDB     = errors.New("a cluster has no numbered databases")
)

const defaultPort = "6379"

// parseAddress reads the value of a -store flag. It does not use net/url for the
// whole, whose errors quote it and whose hosts cannot be lists.
func parseAddress(s string) (address, error) {
	if s == "memory" {
		return address{kind: memory}, nil
	}
	scheme, rest, ok := strings.Cut(s, "://")
	kind, known := schemes[scheme]
	if !ok || !known {
		return address{}, errScheme
	}
	a := address{kind: kind}
	authority, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		if err := a.login(authority[:i]); err != nil {
			return address{}, err
		}
		authority = authority[i+1:]
	}
	if err := a.at(authority); err != nil {
		return address{}, err
	}
	return a, a.number(path)
}

// login reads user:password.
func (a *address) login(s string) error {
	user, password, _ := strings.Cut(s, ":")
	var err, err2 error
	a.user, err = url.PathUnescape(user)
	a.password, err2 = url.PathUnescape(password)
	switch {
	case err != nil || err2 != nil || strings.Contains(s, "@"):
		return errUserinfo
	case a.password == "": // the client would not log in at all
		return errUser
	}
	return nil
}

// at reads one host or, for a cluster, a list of them.
func (a *address) at(s string) error {
	hosts := strings.Split(s, ",")
	if len(hosts) > 1 && a.kind != cluster {
		return errHosts
	}
	for _, h := range hosts {
		h, err := hostPort(h)
		if err != nil {
			return err
		}
		a.hosts = append(a.hosts, h)
	}
	return nil
}

// hostPort returns s with a port.
func hostPort(s string) (string, error) {
	bare := strings.HasSuffix(s, "]") || !strings.Contains(s, ":")
	if bare {
		s += ":" + defaultPort
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", errHost
	}
	n, err := strconv.ParseUint(port, 10, 16)
	named := host != "" && s[0] != '[' && !strings.ContainsFunc(host, func(r rune) bool { return !inHostName(r) })
	if err != nil || n == 0 || !named && net.ParseIP(host) == nil {
		return "", errHost
	}
	return net.JoinHostPort(host, port), nil
}

func inHostName(r rune) bool {
	return r == '-' || r == '.' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

// number reads the database that the path names.
func (a *address) number(path string) error {
	if path == "" {
		return nil
	}
	n, err := strconv.ParseUint(path, 10, 16)
	switch {
	case err != nil:
		return errDB
	case a.kind == cluster:
		return errNoDB
	}
	a.db = int(n)
	return nil
}

// name identifies the store among shards, and to people: the same for every
// process that is given the same address, and without credentials.
func (a address) name() string {
	if a.kind == memory {
		return "memory"
	}
	name := strings.Join(a.hosts, ",")
	if a.db != 0 {
		name += "/" + strconv.Itoa(a.db)
	}
	return name
}
