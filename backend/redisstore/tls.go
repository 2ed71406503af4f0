package redisstore

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
)

// alerts are what a server says when it refuses a handshake, and at no other
// time. With TLS 1.3 that of a missing certificate comes after the first command
// was written; it was not read.
var alerts = []string{
	"tls: handshake failure", "tls: bad certificate", "tls: unsupported certificate", "tls: revoked certificate",
	"tls: expired certificate", "tls: unknown certificate", "tls: unknown certificate authority", "tls: access denied",
	"tls: protocol version not supported", "tls: insufficient security level", "tls: unrecognized name", "tls: certificate required",
}

// isHandshake reports whether err is the end of a TLS handshake: the connection
// was never there, so nothing was carried out. Go has types for some of these
// errors, and texts alone for the others.
func isHandshake(err error) bool {
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	var network *net.OpError
	switch {
	case errors.As(err, &untrusted):
		return true
	case errors.As(err, &plain):
		return plain.Conn != nil // else the stream broke later
	case errors.As(err, &network):
		return network.Op == "remote error" && slices.Contains(alerts, network.Err.Error())
	}
	return strings.HasPrefix(err.Error(), "tls: server selected unsupported protocol version")
}
