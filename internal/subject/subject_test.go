package subject

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestKeys(t *testing.T) {
	assert.Equal(t, "user:alice", User("alice"))
	assert.Empty(t, User(""))
	assert.Equal(t, "header:X-Tenant:acme", NewHeader("x-tenant").Key("acme"))
	assert.Equal(t, NewHeader("x-tenant"), NewHeader("X-TENANT"))
	assert.Empty(t, NewHeader("x-tenant").Key(""))
	assert.Empty(t, Address(netip.Addr{}))
	for addr, want := range map[string]string{
		"192.0.2.1": "addr:192.0.2.1", "::ffff:192.0.2.1": "addr:192.0.2.1",
		"64:ff9b::192.0.2.1": "addr:192.0.2.1", "64:ff9b:1::192.0.2.1": "addr:64:ff9b:1::/64",
		"2001:db8:0:1:2::3": "addr:2001:db8:0:1::/64", "fe80::1%eth0": "addr:fe80::/64",
	} {
		assert.Equal(t, want, Address(netip.MustParseAddr(addr)))
	}
}

func TestOnly(t *testing.T) {
	for _, test := range []struct {
		values  []string
		want    string
		several bool
	}{{nil, "", false}, {[]string{"a"}, "a", false}, {[]string{"a", "a"}, "", true}} {
		value, several := Only(test.values)
		assert.Equal(t, test.want, value)
		assert.Equal(t, test.several, several)
	}
}
