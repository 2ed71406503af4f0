//go:build unix && !linux

package redistest

import "syscall"

// dieWithParent returns nil, because only Linux has a parent-death signal. A server
// outlives a killed test binary.
func dieWithParent() *syscall.SysProcAttr { return nil }
