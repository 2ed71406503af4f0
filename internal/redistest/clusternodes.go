package redistest

import (
	"slices"
	"strconv"
	"strings"
)

// peer is one line of CLUSTER NODES, what a node knows of another or of itself:
//
//	id host:port@bus flags master ping-sent pong-received epoch link-state slots…
type peer struct {
	id    string
	flags []string
	epoch uint64
	slots []slotRange
}

// slotRange is a range of slots, both ends included.
type slotRange struct{ first, last int }

// clusterNodes returns what the node knows of the cluster.
func (s *Server) clusterNodes() []peer {
	s.t.Helper()
	text, err := s.do("cluster", "nodes").Text()
	if err != nil {
		s.t.Fatalf("redistest: %s: cluster nodes: %v", s.Addr(), err)
	}
	var peers []peer
	for line := range strings.Lines(text) {
		if columns := strings.Fields(line); len(columns) >= 8 {
			peers = append(peers, parsePeer(columns))
		}
	}
	return peers
}

func parsePeer(columns []string) peer {
	p := peer{id: columns[0], flags: strings.Split(columns[2], ",")}
	p.epoch, _ = strconv.ParseUint(columns[6], 10, 64)
	for _, column := range columns[8:] {
		if r, ok := parseSlots(column); ok {
			p.slots = append(p.slots, r)
		}
	}
	return p
}

// parseSlots reads "5" and "5-7". A slot that migrates has a further column, in
// brackets, which names no slots of its own.
func parseSlots(column string) (slotRange, bool) {
	first, last, isRange := strings.Cut(column, "-")
	if !isRange {
		last = first
	}
	a, errFirst := strconv.Atoi(first)
	b, errLast := strconv.Atoi(last)
	return slotRange{a, b}, errFirst == nil && errLast == nil
}

// is reports whether the peer has the flag.
func (p peer) is(flag string) bool { return slices.Contains(p.flags, flag) }

// slotCount returns how many slots the peer serves.
func (p peer) slotCount() int {
	n := 0
	for _, r := range p.slots {
		n += r.last - r.first + 1
	}
	return n
}

// claims reports whether the node holds itself to be the master of the slot, and
// since which epoch.
func (s *Server) claims(slot int) (epoch uint64, ok bool) {
	s.t.Helper()
	for _, p := range s.clusterNodes() {
		if p.is("myself") && p.is("master") {
			return p.epoch, slices.ContainsFunc(p.slots, func(r slotRange) bool {
				return r.first <= slot && slot <= r.last
			})
		}
	}
	return 0, false
}

// clusterInfo returns the fields of CLUSTER INFO.
func (s *Server) clusterInfo() map[string]string {
	s.t.Helper()
	text, err := s.do("cluster", "info").Text()
	if err != nil {
		s.t.Fatalf("redistest: %s: cluster info: %v", s.Addr(), err)
	}
	return fields(text)
}
