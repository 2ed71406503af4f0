package httplimit

import (
	"net/http"
	"net/netip"
	"strings"
)

// ByAddress is the client's address, as "addr:192.0.2.1", or the first 64 bits of
// it for IPv6, as "addr:2001:db8:0:1::/64": whoever has one such address has them
// all.
//
// It is the peer of the connection, unless that is one of the trusted proxies.
// Then X-Forwarded-For is read from the right, where the nearest proxy has
// written, up to the first address that is not a trusted proxy: what a client
// writes into the header itself stands further left, and counts for nothing. The
// proxies must append to the header, as they do by default. Name only proxies of
// yours: a prefix that clients are in lets them choose their address. Middleware
// that overwrites RemoteAddr, such as chi's RealIP, has believed the header
// already: leave it out.
//
// A peer on a Unix socket has no address. It is a trusted proxy if there are any,
// and its requests have no key otherwise.
func ByAddress(trusted ...netip.Prefix) KeyFunc {
	trusted = unmapped(trusted)
	return func(r *http.Request) string { return addrKey(client(r, trusted, forwardedFor)) }
}

// ByForwarded is ByAddress for proxies that write Forwarded (RFC 7239). There is
// no function that reads both headers: a proxy that writes one of them hands on
// the other as the client wrote it.
func ByForwarded(trusted ...netip.Prefix) KeyFunc {
	trusted = unmapped(trusted)
	return func(r *http.Request) string { return addrKey(client(r, trusted, forwarded)) }
}

// unmapped makes prefixes of IPv4 addresses out of those written as IPv6.
func unmapped(prefixes []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		out = append(out, p.Masked())
	}
	return out
}

// addrKey is the key of an address; "" of none.
func addrKey(a netip.Addr) string {
	b := append(make([]byte, 0, 64), "addr:"...)
	switch {
	case !a.IsValid():
		return ""
	case a.Is4():
		return string(a.AppendTo(b))
	default:
		p, _ := a.Prefix(64)
		return string(p.AppendTo(b))
	}
}

// source is where proxies note whom they had a request from: a header, and what
// one element of its list says.
type source struct {
	header string
	node   func(element string) string
}

var (
	forwardedFor = source{"X-Forwarded-For", func(e string) string { return e }}
	forwarded    = source{"Forwarded", forParameter}
)

// client returns the nearest address that is no trusted proxy, or the furthest
// proxy if there is none. What a proxy has noted that is no address, as "unknown",
// ends the search: the request came through that proxy, and that is all that is
// known.
func client(r *http.Request, trusted []netip.Prefix, from source) netip.Addr {
	a := node(r.RemoteAddr)
	if !a.IsValid() && !local(r.RemoteAddr) || !trusts(trusted, a) {
		return a
	}
	lines := r.Header[from.header]
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var e string
			rest, e, more = cutLast(rest)
			if e == "" { // lists may have empty elements
				continue
			}
			next := node(from.node(e))
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

// local reports whether a peer is on a Unix socket, as net/http writes that.
func local(remote string) bool { return remote == "" || remote[0] == '@' || remote[0] == '/' }

func trusts(trusted []netip.Prefix, a netip.Addr) bool {
	if !a.IsValid() {
		return len(trusted) > 0
	}
	for _, p := range trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// node parses an address with or without port and brackets, and makes one of all
// ways to write it. A zone says nothing of a client. It looks before it parses:
// a failure allocates.
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

// cutLast cuts the last element off a list. It reads from the right, as the right
// end is what a trusted proxy wrote: a quotation mark that a client has
// left open further left does not reach it.
func cutLast(s string) (rest, element string, more bool) {
	if i := lastOutside(s, ','); i >= 0 {
		return s[:i], strings.Trim(s[i+1:], " \t"), true
	}
	return "", strings.Trim(s, " \t"), false
}

// lastOutside is the index of the last sep that is not in a quoted string, or -1.
func lastOutside(s string, sep byte) int {
	quoted := false
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case s[i] == '"' && !escaped(s[:i]):
			quoted = !quoted
		case s[i] == sep && !quoted:
			return i
		}
	}
	return -1
}

// escaped reports whether what follows s is escaped by a backslash.
func escaped(s string) bool {
	n := len(s) - len(strings.TrimRight(s, `\`))
	return n%2 == 1
}

// forParameter is the value of for in an element of Forwarded; "" if there is not
// exactly one.
func forParameter(element string) string {
	found := ""
	for more := true; more; {
		pair := element
		i := lastOutside(element, ';')
		if more = i >= 0; more {
			element, pair = element[:i], element[i+1:]
		}
		name, value, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
		if !strings.EqualFold(name, "for") {
			continue
		}
		if found != "" {
			return ""
		}
		found = value
	}
	if len(found) > 1 && found[0] == '"' && found[len(found)-1] == '"' {
		found = found[1 : len(found)-1]
	}
	return found
}
