package redistest

import (
	"fmt"
	"slices"
)

// migrateBatch is how many keys one MIGRATE moves. Both nodes stand still for it.
const migrateBatch = 100

// migrateTime bounds one MIGRATE, in milliseconds.
const migrateTime = 5000

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
		to.do("cluster", "setslot", slot, "node", target) // first who gets it, or it would be nobody's
		from.do("cluster", "setslot", slot, "node", target)
	}
	for _, node := range c.up() {
		poll(c.t, clusterLimit, "spread a reshard to "+node.Addr(), func() error {
			return node.checkOwner(target, list)
		})
	}
}

// SlotsOf returns the slots that the master serves, as it says.
func (c *Cluster) SlotsOf(master *Server) (list []int) {
	c.t.Helper()
	for _, p := range master.clusterNodes() {
		if p.is("myself") {
			list = append(list, p.list()...)
		}
	}
	return list
}

// SlotOf returns the slot of the key.
func (c *Cluster) SlotOf(key string) int {
	c.t.Helper()
	slot, err := c.up()[0].do("cluster", "keyslot", key).Int()
	if err != nil {
		c.t.Fatalf("redistest: cluster keyslot: %v", err)
	}
	return slot
}

// id returns the node's name in its cluster.
func (s *Server) id() string {
	s.t.Helper()
	id, err := s.do("cluster", "myid").Text()
	if err != nil {
		s.t.Fatalf("redistest: cluster myid: %v", err)
	}
	return id
}

// migrate moves all keys of the slot.
func (s *Server) migrate(to *Server, slot int) {
	s.t.Helper()
	host, port := splitAddr(to.Addr())
	for {
		keys, err := s.do("cluster", "getkeysinslot", slot, migrateBatch).StringSlice()
		if err != nil {
			s.t.Fatalf("redistest: %s: getkeysinslot: %v", s.Addr(), err)
		}
		if len(keys) == 0 {
			return
		}
		args := []any{"migrate", host, port, "", 0, migrateTime, "keys"}
		for _, key := range keys {
			args = append(args, key)
		}
		s.do(args...)
	}
}

// checkOwner returns an error unless the node knows the slots to be the owner's.
func (s *Server) checkOwner(owner string, list []int) error {
	s.t.Helper()
	for _, p := range s.clusterNodes() {
		if p.id != owner {
			continue
		}
		served := make([]bool, slots)
		for _, slot := range p.list() {
			served[slot] = true
		}
		if i := slices.IndexFunc(list, func(slot int) bool { return !served[slot] }); i >= 0 {
			return fmt.Errorf("slot %d is another's", list[i])
		}
		return nil
	}
	return fmt.Errorf("it does not know %s", owner)
}

// list returns the slots that the peer serves.
func (p peer) list() (all []int) {
	for _, r := range p.slots {
		for slot := r.first; slot <= r.last; slot++ {
			all = append(all, slot)
		}
	}
	return all
}

// OpenSlot leaves the slot as a reshard does that was interrupted: one master is to
// give it away, the other is to get it, and no key has moved.
func (c *Cluster) OpenSlot(from, to *Server, slot int) {
	c.t.Helper()
	to.do("cluster", "setslot", slot, "importing", from.id())
	from.do("cluster", "setslot", slot, "migrating", to.id())
}
