//go:build unix && !linux

package torture

import "syscall"

// dieWithParent is nothing here: only Linux has a parent-death signal.
func dieWithParent() *syscall.SysProcAttr { return nil }

// stopped takes the signal's delivery on trust.
func stopped(int) bool { return true }
