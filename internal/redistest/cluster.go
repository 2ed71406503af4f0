package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

const (
	// slots is the number of hash slots of any cluster.
	slots = 16384

	// nodeTimeout is the time in milliseconds after which a silent node counts as down. A
	// replica takes over one or two seconds later.
	nodeTimeout = "2000"
)

// Cluster is a Redis Cluster. Nodes are in the order of their start, the masters first.
// [Cluster.NodeOf] returns the present master of a key. The methods are safe for
// concurrent use.
type Cluster struct {
	Nodes   []*Server
	t       testing.TB
	masters int
}

// StartCluster runs a cluster whose slots are spread evenly over the masters and returns
// when it is whole: each node reports the cluster as able to serve and has met all
// others, and every replica is in sync. Replica j of master i is Nodes[masters*(j+1)+i].
// Redis elects no new master in a cluster of fewer than three masters.
func StartCluster(t testing.TB, masters, replicasPerMaster int) *Cluster {
	t.Helper()
	c := &Cluster{t: t, masters: masters}
	for range masters * (1 + replicasPerMaster) {
		c.Nodes = append(c.Nodes, Start(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-announce-ip", host, "--cluster-node-timeout", nodeTimeout))
	}
	// Nodes with the same epoch would first have to resolve the conflict.
	for i, node := range c.Nodes {
		node.Do("cluster", "set-config-epoch", i+1)
		if i < masters {
			node.Do("cluster", "addslotsrange", slots*i/masters, slots*(i+1)/masters-1)
		}
	}
	c.meet()
	for i, node := range c.Nodes[masters:] {
		node.Do("cluster", "replicate", c.Nodes[i%masters].text("cluster", "myid"))
	}
	c.AwaitWhole()
	for _, master := range c.Nodes[:masters] {
		poll(t, patience, "replicate "+master.Addr(), func() error { return master.checkReplicas(replicasPerMaster) })
	}
	return c
}

// meet introduces every node to every other one. Gossip would do that after a
// single round, but takes seconds.
func (c *Cluster) meet() {
	c.t.Helper()
	for i, node := range c.Nodes {
		for _, other := range c.Nodes[:i] {
			node.Do("cluster", "meet", host, other.port)
		}
	}
	c.await("introduce the nodes", func(node *Server) error {
		if known := node.text("cluster", "nodes"); strings.Count(known, "\n") != len(c.Nodes) || strings.Contains(known, "handshake") {
			return errors.New("it knows\n" + known)
		}
		return nil
	})
}

// await waits until check returns nil for every node that is up.
func (c *Cluster) await(what string, check func(*Server) error) {
	c.t.Helper()
	for _, node := range c.up() {
		poll(c.t, patience, what+": "+node.Addr(), func() error { return check(node) })
	}
}

// AwaitWhole returns when every node that is up reports a cluster that serves all slots,
// with all replicas and no failed node.
func (c *Cluster) AwaitWhole() {
	c.t.Helper()
	c.await("make a cluster whole", func(node *Server) error {
		known, info := node.text("cluster", "nodes"), node.text("cluster", "info")
		if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprint("cluster_slots_assigned:", slots)) ||
			strings.Count(known, "slave") != len(c.Nodes)-c.masters || strings.Contains(known, "fail") {
			return errors.New(info + known)
		}
		if link, ok := node.info("Replication")["master_link_status"]; ok && link != "up" {
			return errors.New("its link to its master is " + link)
		}
		return nil
	})
}

// text returns the reply to a command that replies with a text.
func (s *Server) text(args ...any) string {
	s.t.Helper()
	return s.Do(args...).Val().(string)
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() (addrs []string) {
	for _, node := range c.Nodes {
		addrs = append(addrs, node.Addr())
	}
	return addrs
}

// Client returns a client of the cluster that is closed when the test ends. The options
// are those of go-redis by default; opts may change them, for example set the Dialer to
// one from [Dialer].
func (c *Cluster) Client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	return newClient(c.t, redis.NewClusterClient, &redis.ClusterOptions{Addrs: c.Addrs()}, opts)
}

// Calls returns the sum of [Server.Calls] over the nodes that are up. A killed node loses
// its counts.
func (c *Cluster) Calls(command ...string) (sum int64) {
	c.t.Helper()
	for _, node := range c.up() {
		sum += node.Calls(command...)
	}
	return sum
}

// ResetStats is [Server.ResetStats] for the nodes that are up.
func (c *Cluster) ResetStats() {
	c.t.Helper()
	for _, node := range c.up() {
		node.ResetStats()
	}
}

// SetUser is [Server.SetUser] on all nodes, because users are not replicated.
func (c *Cluster) SetUser(line string) {
	c.t.Helper()
	for _, node := range c.Nodes {
		node.SetUser(line)
	}
}

// up returns the nodes that are up.
func (c *Cluster) up() []*Server {
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(node *Server) bool { return !node.Up() })
}

// NodeOf returns the master that owns the key's slot, by the majority of the nodes that
// are up, because a replaced master claims its slots until it learns of that. NodeOf
// returns nil from the time at which the owner goes down until the majority reports the
// replica that has taken over.
func (c *Cluster) NodeOf(key string) *Server {
	c.t.Helper()
	slot, up := c.SlotOf(key), c.up()
	votes := make(map[string]int)
	for _, node := range up {
		votes[node.owners()[slot]]++
	}
	i := slices.IndexFunc(up, func(node *Server) bool { return votes[node.Addr()] > len(up)/2 })
	if i < 0 {
		return nil
	}
	return up[i]
}

// SlotsOf returns the slots that the master reports as its own, in order.
func (c *Cluster) SlotsOf(master *Server) (list []int) {
	c.t.Helper()
	for slot, addr := range master.owners() {
		if addr == master.Addr() {
			list = append(list, slot)
		}
	}
	return list
}

// SlotOf returns the slot of the key.
func (c *Cluster) SlotOf(key string) int {
	c.t.Helper()
	return int(c.up()[0].Do("cluster", "keyslot", key).Val().(int64))
}

// Reshard moves the slots from the master that serves them to another, one after the
// other, as redis-cli --cluster reshard does, and returns when all nodes that are up
// report it. Clients may go on meanwhile. They get ASK, TRYAGAIN and MOVED.
func (c *Cluster) Reshard(from, to *Server, list []int) {
	c.t.Helper()
	target := to.text("cluster", "myid")
	for _, slot := range list {
		c.OpenSlot(from, to, slot)
		from.migrate(to, slot)
		to.Do("cluster", "setslot", slot, "node", target) // the new owner first, so that the slot always has one
		from.Do("cluster", "setslot", slot, "node", target)
	}
	c.await("spread a reshard", func(node *Server) error {
		if node.owners() != to.owners() {
			return errors.New("it reports other owners")
		}
		return nil
	})
}

// OpenSlot leaves the slot as an interrupted reshard does: one master migrates it, the
// other imports it, and no key has moved.
func (c *Cluster) OpenSlot(from, to *Server, slot int) {
	c.t.Helper()
	to.Do("cluster", "setslot", slot, "importing", from.text("cluster", "myid"))
	from.Do("cluster", "setslot", slot, "migrating", to.text("cluster", "myid"))
}

// migrate moves all keys of the slot, a hundred at a time.
func (s *Server) migrate(to *Server, slot int) {
	s.t.Helper()
	for {
		keys := s.Do("cluster", "getkeysinslot", slot, 100).Val().([]any)
		if len(keys) == 0 {
			return
		}
		s.MigrateKeys(to, keys...)
	}
}

// MigrateKeys moves keys of an open slot. It blocks both nodes, for at most 5000 ms.
func (s *Server) MigrateKeys(to *Server, keys ...any) {
	s.t.Helper()
	s.Do(append([]any{"migrate", host, to.port, "", 0, 5000, "replace", "keys"}, keys...)...)
}

// owners returns the address of each slot's master, or "", as the node tells clients.
func (s *Server) owners() (addrs [slots]string) {
	s.t.Helper()
	cmd := redis.NewClusterSlotsCmd(context.Background(), "cluster", "slots")
	check(s.t, s.admin.Process(context.Background(), cmd))
	for _, r := range cmd.Val() {
		for slot := r.Start; slot <= r.End; slot++ {
			addrs[slot] = r.Nodes[0].Addr // of the master; its replicas follow
		}
	}
	return addrs
}
