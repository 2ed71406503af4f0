package redistest

import "syscall"

// dieWithParent makes the kernel kill the child when this process ends in any way,
// because cleanup does not run after a SIGKILL or a test timeout.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
