package redistest

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// SetUser makes the user of a line as it stands in an ACL file, "user name
// rule rule…", and forgets what rights the user had before. Connections that the
// user has are closed.
func (s *Server) SetUser(line string) {
	s.t.Helper()
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "user" {
		s.t.Fatalf("redistest: %q is no line of an ACL file", line)
	}
	s.Do("acl", "deluser", words[1])
	args := []any{"acl", "setuser"}
	for _, word := range words[1:] {
		args = append(args, word)
	}
	s.Do(args...)
}

// SetUser is [Server.SetUser] on all nodes: users are not replicated.
func (c *Cluster) SetUser(line string) {
	c.t.Helper()
	for _, node := range c.Nodes {
		node.SetUser(line)
	}
}

// User makes a client log in.
func User(name, password string) func(*redis.Options) {
	return func(o *redis.Options) { o.Username, o.Password = name, password }
}

// ClusterUser is [User] for a cluster's client.
func ClusterUser(name, password string) func(*redis.ClusterOptions) {
	return func(o *redis.ClusterOptions) { o.Username, o.Password = name, password }
}
