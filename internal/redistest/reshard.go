package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// migrateBatch is how many keys one MIGRATE moves. Both nodes stand still for it,
// for at most migrateTime, in milliseconds.
const (
	migrateBatch = 100
	migrateTime  = 5000
)

// itself is how CLUSTER NODES marks the node that is asked, if it is a master.
const itself = "myself,master"

// NodeOf returns the master that owns the key's slot. It asks the nodes that are
// up what they own, so it is nil from the time at which the owner goes down
// until a replica has taken over.
func (c *Cluster) NodeOf(key string) (owner *Server) {
	c.t.Helper()
	slot, newest := c.SlotOf(key), 0
	for _, node := range c.up() {
		// A master that was replaced while it was away claims its slots
		// until it hears of it; the newer claim is right.
		if list, epoch := node.slotsOf(itself); slices.Contains(list, slot) && epoch >= newest {
			owner, newest = node, epoch
		}
	}
	return owner
}

// SlotsOf returns the slots that the master serves, as it says.
func (c *Cluster) SlotsOf(master *Server) []int {
	c.t.Helper()
	list, _ := master.slotsOf(itself)
	return list
}

// SlotOf returns the slot of the key.
func (c *Cluster) SlotOf(key string) int {
	c.t.Helper()
	return int(c.up()[0].Do("cluster", "keyslot", key).Val().(int64))
}

// Reshard moves the slots from the master that serves them to another, one after
// the other, as redis-cli --cluster reshard does, and returns when all nodes that
// are up know of it. Clients may go on meanwhile: they are told ASK, TRYAGAIN and
// MOVED.
func (c *Cluster) Reshard(from, to *Server, list []int) {
	c.t.Helper()
	target := to.id()
	for _, slot := range list {
		c.OpenSlot(from, to, slot)
		from.migrate(to, slot)
		to.Do("cluster", "setslot", slot, "node", target) // first who gets it, or it would be nobody's
		from.Do("cluster", "setslot", slot, "node", target)
	}
	for _, node := range c.up() {
		poll(c.t, clusterLimit, "spread a reshard to "+node.Addr(), func() error {
			known, _ := node.slotsOf(target)
			for _, slot := range list {
				if _, ok := slices.BinarySearch(known, slot); !ok {
					return fmt.Errorf("slot %d is another's", slot)
				}
			}
			return nil
		})
	}
}

// OpenSlot leaves the slot as a reshard does that was interrupted: one master is to
// give it away, the other is to get it, and no key has moved.
func (c *Cluster) OpenSlot(from, to *Server, slot int) {
	c.t.Helper()
	to.Do("cluster", "setslot", slot, "importing", from.id())
	from.Do("cluster", "setslot", slot, "migrating", to.id())
}

// migrate moves all keys of the slot.
func (s *Server) migrate(to *Server, slot int) {
	s.t.Helper()
	host, port := splitAddr(to.Addr())
	for {
		keys := s.Do("cluster", "getkeysinslot", slot, migrateBatch).Val().([]any)
		if len(keys) == 0 {
			return
		}
		s.Do(append([]any{"migrate", host, port, "", 0, migrateTime, "replace", "keys"}, keys...)...)
	}
}

// id returns the node's name in its cluster.
func (s *Server) id() string {
	s.t.Helper()
	return s.Do("cluster", "myid").Val().(string)
}

// clusterNodes returns what the node knows of the cluster, a line for each node:
//
//	id host:port@bus flags master ping-sent pong-received epoch link-state slots…
func (s *Server) clusterNodes() string {
	s.t.Helper()
	return s.Do("cluster", "nodes").Val().(string)
}

// slotsOf returns which slots a node has, in order, and since which epoch, as this one
// knows. It is named by its id or by its flags.
func (s *Server) slotsOf(who string) (list []int, epoch int) {
	s.t.Helper()
	for line := range strings.Lines(s.clusterNodes()) {
		columns := strings.Fields(line)
		if len(columns) < 8 || columns[0] != who && columns[2] != who {
			continue
		}
		epoch, _ = strconv.Atoi(columns[6])
		for _, column := range columns[8:] {
			list = append(list, parseSlots(column)...)
		}
	}
	return list, epoch
}

// parseSlots reads "5" and "5-7". A slot that migrates has a further column, in
// brackets, which names no slots of its own.
func parseSlots(column string) (list []int) {
	first, last, isRange := strings.Cut(column, "-")
	if !isRange {
		last = first
	}
	slot, errFirst := strconv.Atoi(first)
	end, errLast := strconv.Atoi(last)
	for ; errFirst == nil && errLast == nil && slot <= end; slot++ {
		list = append(list, slot)
	}
	return list
}
