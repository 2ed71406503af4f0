package httplimit

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-reservoir/reservoir/internal/subject"
)

// ByAddress uses the client's address, such as "addr:192.0.2.1", or its first 64 bits for
// IPv6, such as "addr:2001:db8:0:1::/64", because one client usually has all such
// addresses. Of an address of NAT64 (64:ff9b::/96) it uses the IPv4 address inside.
//
// The address is the connection's peer, unless that is one of the trusted proxies. If it
// is, ByAddress reads X-Forwarded-For from the right, where the nearest proxy has
// written, up to the first address that is not a trusted proxy. A value that the client
// itself wrote stands further left and is ignored. The proxies must append to the header,
// as they do by default. Name only your own proxies, because a prefix that includes
// clients lets them choose their address. Do not use middleware that overwrites
// RemoteAddr, such as chi's RealIP, because it has already trusted the header.
//
// A peer on a Unix socket has no address. If there are trusted proxies, it counts as one
// of them; otherwise its requests have no key.
func ByAddress(trusted ...netip.Prefix) KeyFunc {
	trusted = slices.Clone(trusted)
	return func(r *http.Request) string { return subject.Address(client(r, trusted)) }
}

// client returns the nearest address that is no trusted proxy, or the furthest proxy if
// all are trusted. An element that is no address, such as "unknown", ends the search, and
// client returns the proxy that wrote it.
func client(r *http.Request, trusted []netip.Prefix) netip.Addr {
	a := node(r.RemoteAddr)
	if !a.IsValid() && !local(r.RemoteAddr) || !trusts(trusted, a) {
		return a
	}
	for _, rest := range slices.Backward(r.Header["X-Forwarded-For"]) {
		for more := true; more; {
			var e string
			rest, e, more = cutLast(rest)
			if e == "" { // lists may have empty elements
				continue
			}
			next := node(e)
			if !next.IsValid() {
				return a
			}
			a = next
			if !trusts(trusted, a) {
				return a
			}
		}
	}
	return a
}

// local reports whether a peer is on a Unix socket, by the text of RemoteAddr.
func local(remote string) bool { return remote == "" || remote[0] == '@' || remote[0] == '/' }

// trusts reports whether a is a trusted proxy. A peer without an address, on a Unix socket,
// is one if there are any.
func trusts(trusted []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return !a.IsValid() || p.Contains(a) })
}

// node parses an address with or without port and brackets, into one form for all ways to
// write it, without a zone. It checks the form before it parses, because a failed parse
// allocates.
func node(s string) netip.Addr {
	var a netip.Addr
	if strings.Contains(s, "]:") || strings.Count(s, ":") == 1 {
		ap, _ := netip.ParseAddrPort(s) // the zero value is no address
		a = ap.Addr()
	} else {
		a, _ = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	}
	return a.Unmap().WithZone("")
}

// cutLast cuts the last element off a list. It reads from the right, because a trusted
// proxy wrote the right end.
func cutLast(list string) (rest, element string, more bool) {
	i := strings.LastIndexByte(list, ',')
	return list[:max(i, 0)], strings.Trim(list[i+1:], " \t"), i >= 0
}
