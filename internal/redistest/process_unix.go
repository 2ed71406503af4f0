//go:build unix && !linux

package redistest

import "syscall"

// dieWithParent is nothing here: only Linux has a parent-death signal. A
// server outlives a test binary that is killed.
func dieWithParent() *syscall.SysProcAttr { return nil }
