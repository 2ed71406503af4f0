package redistest

import (
	"fmt"
	"slices"
)

// migrateBatch is how many keys one MIGRATE moves. Both nodes stand still for it,
// for at most migrateTime, in milliseconds.
const (
	migrateBatch = 100
	migrateTime  = 5000
)

// NodeOf returns the master that owns the key's slot, as most of the nodes that are up
// say. It is nil from the time at which the owner goes down until a replica has taken
// over, and most have heard of that. A master that was replaced while it was away claims
// its slots until it hears of it.
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

// SlotsOf returns the slots that the master serves, as it says, in order.
func (c *Cluster) SlotsOf(master *Server) (list []int) {
	c.t.Helper()
	for slot, owner := range master.owners() {
		if owner == master.Addr() {
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
	c.await("spread a reshard", func(node *Server) error {
		owners := node.owners()
		for _, slot := range list {
			if owners[slot] != to.Addr() {
				return fmt.Errorf("slot %d is another's", slot)
			}
		}
		return nil
	})
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
	for {
		keys := s.Do("cluster", "getkeysinslot", slot, migrateBatch).Val().([]any)
		if len(keys) == 0 {
			return
		}
		s.Do(append([]any{"migrate", host, to.port, "", 0, migrateTime, "replace", "keys"}, keys...)...)
	}
}

// owners returns the address of each slot's master, as the node knows.
func (s *Server) owners() (of [slots]string) {
	s.t.Helper()
	for _, row := range s.Do("cluster", "slots").Val().([]any) {
		r := row.([]any) // first, last, a node: the master, its replicas
		master := r[2].([]any)
		for slot := r[0].(int64); slot <= r[1].(int64); slot++ {
			of[slot] = loopback(int(master[1].(int64)))
		}
	}
	return of
}
