package redistest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// dieWithParent has the kernel kill the child when this process ends in
// whatever way: cleanup does not run after a SIGKILL or a test timeout.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether the process is stopped by a signal. The state is the
// letter after the command's name, which stands in parentheses.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	end := bytes.LastIndexByte(stat, ')')
	return bytes.HasPrefix(stat[end+1:], []byte(" T"))
}
