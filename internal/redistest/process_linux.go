package redistest

import "syscall"

// dieWithParent has the kernel kill the child when this process ends in
// whatever way: cleanup does not run after a SIGKILL or a test timeout.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
