// Package subject names those whom requests count for, in the keys of httplimit and
// grpclimit: a user has one limit over both. A key begins with its kind, so that no client
// can use up a limit of another kind by choosing its name.
package subject

import (
	"net/netip"
	"net/textproto"
)

// User returns the key of an authenticated user, or "" if there is no name.
func User(name string) string { return with("user:", name) }

// nat64 is the prefix by which a network without IPv4 reaches clients that have nothing else; RFC 6052.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Address returns the key of a peer's address, or "" if it is not valid. An IPv6 address
// counts for its /64 network, because one customer usually has all such addresses; one of NAT64 is the IPv4 address inside.
func Address(a netip.Addr) string {
	b := append(make([]byte, 0, 64), "addr:"...)
	if a = a.Unmap().WithZone(""); nat64.Contains(a) {
		in := a.As16()
		a = netip.AddrFrom4([4]byte(in[12:]))
	}
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

// Header is a header of HTTP, or the gRPC metadata of the same name, in any case.
type Header struct{ prefix string }

// NewHeader returns the header of a name.
func NewHeader(name string) Header {
	return Header{"header:" + textproto.CanonicalMIMEHeaderKey(name) + ":"}
}

// Key returns the key of a value, or "" if it is empty.
func (h Header) Key(value string) string { return with(h.prefix, value) }

// Only returns the value of a header that was sent once. If it was sent several times, one
// value may be the client's and another the gateway's, and they look the same; so there is
// none.
func Only(values []string) (value string, several bool) {
	if len(values) == 1 {
		return values[0], false
	}
	return "", len(values) > 1
}

func with(kind, name string) string {
	if name == "" {
		return ""
	}
	return kind + name
}
