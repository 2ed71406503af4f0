package torture

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

const (
	clusterSlots = 16384
	electLimit   = 15 * time.Second // for a node timeout of 2 s
	healLimit    = 30 * time.Second
)

// tag is what a key's slot is found by.
func (s *stage) tag(r role, part int) string {
	return "{" + keyOf(r, s.target.Suffixes[r][part]) + "}"
}

// owner is the number of the node that serves a part's keys, or -1 when none does.
func (s *stage) owner(part int) int {
	node := s.cluster.NodeOf(s.tag(tight, part))
	for i, n := range s.cluster.Nodes {
		if n == node {
			return i
		}
	}
	return -1
}

// healed waits until all nodes see a cluster with three masters that serve all
// slots and three replicas in sync.
func (s *stage) healed() {
	s.t.Helper()
	await(s.t, healLimit, "the cluster is whole again", func() bool {
		for _, node := range s.nodes {
			info, err := node.ClusterInfo(context.Background()).Result()
			if err != nil || !strings.Contains(info, "cluster_state:ok") || !s.knowsAll(node) {
				return false
			}
			if r := infoOf(node, "replication"); r["role"] == "slave" && r["master_link_status"] != "up" {
				return false
			}
		}
		return true
	})
}

func (s *stage) knowsAll(node *redis.Client) bool {
	text, err := node.ClusterNodes(context.Background()).Result()
	return err == nil && !strings.Contains(text, "fail") && strings.Count(text, "slave") == 3
}

// elected waits until another node than the old one serves a part's keys.
func (s *stage) elected(part, old int) {
	s.t.Helper()
	await(s.t, electLimit, "a replica is elected", func() bool {
		i := s.owner(part)
		return i >= 0 && i != old
	})
}

// migration moves slots from one master to another while both serve.
type migration struct {
	s        *stage
	from, to int // nodes
	ids      [2]string
}

func (s *stage) migration(from, to int) *migration {
	s.t.Helper()
	m := &migration{s: s, from: from, to: to}
	for i, n := range []int{from, to} {
		id, err := s.nodes[n].Do(context.Background(), "cluster", "myid").Text()
		require.NoError(s.t, err)
		m.ids[i] = id
	}
	return m
}

// move moves the slots one by one, as redis-cli --cluster reshard does.
func (m *migration) move(slots []int) {
	m.s.t.Helper()
	for _, slot := range slots {
		m.set(m.to, slot, "importing", m.ids[0])
		m.set(m.from, slot, "migrating", m.ids[1])
		m.keys(slot)
		m.set(m.to, slot, "node", m.ids[1])
		m.set(m.from, slot, "node", m.ids[1])
	}
}

func (m *migration) set(node, slot int, state, id string) {
	m.s.t.Helper()
	err := m.s.nodes[node].Do(context.Background(), "cluster", "setslot", slot, state, id).Err()
	require.NoError(m.s.t, err, "setslot %d %s", slot, state)
}

// keys moves the keys of a slot, those of one limit together.
func (m *migration) keys(slot int) {
	m.s.t.Helper()
	ctx := context.Background()
	host, port, err := net.SplitHostPort(m.s.cluster.Nodes[m.to].Addr())
	require.NoError(m.s.t, err)
	for {
		keys, err := m.s.nodes[m.from].ClusterGetKeysInSlot(ctx, slot, 100).Result()
		require.NoError(m.s.t, err)
		if len(keys) == 0 {
			return
		}
		args := []any{"migrate", host, port, "", 0, 5000, "replace", "keys"}
		for _, k := range keys {
			args = append(args, k)
		}
		require.NoError(m.s.t, m.s.nodes[m.from].Do(ctx, args...).Err())
	}
}

// slotsOf lists n slots of a master, those of our keys first: they shall move.
func (s *stage) slotsOf(node, n int) []int {
	s.t.Helper()
	ctx := context.Background()
	client, owned := s.nodes[node], s.owned(node)
	var list []int
	pick := func(slot int) {
		if owned[slot] && len(list) < n {
			list, owned[slot] = append(list, slot), false
		}
	}
	for r := range role(roles) {
		for part := range s.target.parts() {
			slot, err := client.ClusterKeySlot(ctx, s.tag(r, part)).Result()
			require.NoError(s.t, err)
			pick(int(slot))
		}
	}
	for slot := range clusterSlots {
		pick(slot)
	}
	return list
}

// owned is the slots that a node says it serves.
func (s *stage) owned(node int) map[int]bool {
	s.t.Helper()
	text, err := s.nodes[node].ClusterNodes(context.Background()).Result()
	require.NoError(s.t, err)
	slots := make(map[int]bool)
	for l := range strings.Lines(text) {
		columns := strings.Fields(l)
		if len(columns) < 8 || !strings.Contains(columns[2], "myself") {
			continue
		}
		for _, column := range columns[8:] {
			var first, last int
			n, _ := fmt.Sscanf(column, "%d-%d", &first, &last) // one number is one slot
			if n == 1 {
				last = first
			}
			for slot := first; n > 0 && slot <= last; slot++ {
				slots[slot] = true
			}
		}
	}
	return slots
}

// masters lists the nodes that serve slots now, by part.
func (s *stage) masters() []int {
	s.t.Helper()
	var list []int
	for part := range s.target.parts() {
		i := s.owner(part)
		require.GreaterOrEqual(s.t, i, 0, fmt.Sprint("part ", part, " is served"))
		list = append(list, i)
	}
	return list
}

// nodeProxy is the proxy before a node.
func (s *stage) nodeProxy(i int) *redistest.Proxy { return s.proxies[i] }
