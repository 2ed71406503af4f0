package search

import (
	"reflect"
	"slices"
	"unsafe"

	"github.com/go-reservoir/reservoir/internal/naive"
)

var (
	storeShape  = shapeOf(reflect.TypeFor[store]())
	clientShape = shapeOf(reflect.TypeFor[client]())
	budgetShape = shapeOf(reflect.TypeFor[budget]())
	tokensShape = shapeOf(reflect.TypeFor[naive.Tokens]())
)

func (c *scope) hashStore(s *state) {
	s.sums.accounts = [most]uint64{}
	d := digest{names: names[:c.clients], parts: s.sums.accounts[:]}
	storeShape.hash(&d, unsafe.Pointer(&s.store))
	s.sums.store = d.sum
}

func (c *scope) hashClient(s *state, who int) {
	d := digest{names: names[:c.clients]}
	clientShape.hash(&d, unsafe.Pointer(&s.clients[who]))
	s.sums.clients[who] = d.sum
}

// hash is the same for states that differ by the names of clients only.
func (c *scope) hash(s *state) uint64 {
	var parts [most + 1]uint64
	copy(parts[:], s.sums.clients[:])
	for i := range s.log.List {
		t := &s.log.List[i]
		d, owner := digest{sum: parts[t.Owner]}, t.Owner
		t.Owner = 0
		tokensShape.hash(&d, unsafe.Pointer(t))
		t.Owner, parts[owner] = owner, d.sum
	}
	d := digest{sum: s.sums.store}
	for i, sum := range s.sums.accounts {
		one := digest{sum: parts[i]}
		one.word(sum)
		parts[i] = one.sum
	}
	slices.Sort(parts[:most])
	for _, p := range parts {
		d.word(p)
	}
	for _, list := range [...][]int64{s.log.Losses, s.log.Resets} {
		for _, at := range list {
			d.word(uint64(at))
		}
		d.word(0)
	}
	budgetShape.hash(&d, unsafe.Pointer(&s.left))
	d.word(uint64(s.instant))
	d.word(uint64(s.later))
	d.word(uint64(s.granted))
	d.word(uint64(s.log.Held))
	d.word(uint64(s.taken.End))
	d.word(uint64(s.taken.Gen))
	return d.sum
}
