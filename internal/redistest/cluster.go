package redistest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// slots is the number of hash slots of any cluster.
	slots = 16384

	// nodeTimeout is after how many milliseconds of silence a node is held
	// to be down. A replica takes over one or two seconds later.
	nodeTimeout = 2000

	// clusterLimit is how long a step of the formation may take. The whole
	// takes some 2.5 seconds, of which a master waits 2 before it serves.
	clusterLimit = 30 * time.Second
)

// Cluster is a Redis Cluster. The order of its nodes is that of their start,
// the masters first; [Cluster.NodeOf] knows who is a master later.
type Cluster struct {
	Nodes   []*Server
	t       testing.TB
	masters int
}

// StartCluster runs a cluster whose slots are spread evenly over the masters and
// returns when it is whole: each node sees the cluster as able to serve, knows
// all others, and every replica is in sync. Replica j of master i is
// Nodes[masters*(j+1)+i]. Redis elects no new master for a cluster of fewer than
// three.
func StartCluster(t testing.TB, masters, replicasPerMaster int) *Cluster {
	t.Helper()
	c := &Cluster{t: t, masters: masters}
	var busPorts []int
	for range masters * (1 + replicasPerMaster) {
		node, busPort := startNode(t)
		c.Nodes = append(c.Nodes, node)
		busPorts = append(busPorts, busPort)
	}
	// Nodes that begin with the same epoch must first settle who raises it.
	for i, node := range c.Nodes {
		node.Do("cluster", "set-config-epoch", i+1)
		if i < masters {
			node.Do("cluster", "addslotsrange", slots*i/masters, slots*(i+1)/masters-1)
		}
	}
	c.meet(busPorts)
	for i, node := range c.Nodes[masters:] {
		node.Do("cluster", "replicate", c.Nodes[i%masters].id())
	}
	c.AwaitWhole()
	for _, master := range c.Nodes[:masters] {
		poll(t, clusterLimit, "replicate "+master.Addr(), func() error { return master.checkReplicas(replicasPerMaster) })
	}
	return c
}

// startNode runs one node that knows no other. The port of the cluster bus is
// chosen too, because the default, 10000 above the other, may be in use.
func startNode(t testing.TB) (node *Server, busPort int) {
	t.Helper()
	node = launch(t, func(dir string, port int) []string {
		busPort = reservePort(t)
		return append(serverArgs(dir, port),
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-port", strconv.Itoa(busPort), "--cluster-announce-ip", "127.0.0.1",
			"--cluster-node-timeout", strconv.Itoa(nodeTimeout))
	})
	return node, busPort
}

// meet introduces every node to every other one. Gossip would do that after a
// single round, but takes seconds.
func (c *Cluster) meet(busPorts []int) {
	c.t.Helper()
	for i, node := range c.Nodes {
		for j, other := range c.Nodes[:i] {
			host, port := splitAddr(other.Addr())
			node.Do("cluster", "meet", host, port, busPorts[j])
		}
	}
	for _, node := range c.Nodes {
		poll(c.t, clusterLimit, "introduce "+node.Addr(), func() error {
			known := node.clusterNodes()
			if strings.Count(known, "\n") != len(c.Nodes) || strings.Contains(known, "handshake") {
				return errors.New("it knows\n" + known)
			}
			return nil
		})
	}
}

// AwaitWhole returns when every node sees a cluster that serves all slots, of as
// many masters and replicas as there were at the start, none of which has failed.
func (c *Cluster) AwaitWhole() {
	c.t.Helper()
	for _, node := range c.Nodes {
		poll(c.t, clusterLimit, "make a cluster whole at "+node.Addr(), func() error { return c.check(node) })
	}
}

func (c *Cluster) check(node *Server) error {
	c.t.Helper()
	known, info := node.clusterNodes(), fields(node.Do("cluster", "info").Val().(string))
	if info["cluster_state"] != "ok" || info["cluster_slots_assigned"] != strconv.Itoa(slots) ||
		strings.Count(known, "slave") != len(c.Nodes)-c.masters || strings.Contains(known, "fail") {
		return fmt.Errorf("%v\n%s", info, known)
	}
	if link, ok := node.info("replication")["master_link_status"]; ok && link != "up" {
		return errors.New("its link to its master is " + link)
	}
	return nil
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() (addrs []string) {
	for _, node := range c.Nodes {
		addrs = append(addrs, node.Addr())
	}
	return addrs
}

// Client returns a client of the cluster that is closed when the test ends. The
// options are those of go-redis by default; opts may change them, such as the
// Dialer, to one that [Dialer] returns.
func (c *Cluster) Client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	options := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, opt := range opts {
		opt(options)
	}
	client := redis.NewClusterClient(options)
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Calls returns the sum of [Server.Calls] over the nodes that are up. What a
// node counted is gone when it is killed.
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

// up returns the nodes that can be asked.
func (c *Cluster) up() (nodes []*Server) {
	for _, node := range c.Nodes {
		if node.up() {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
