package torture

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// dieWithParent has the kernel kill the child when the runner ends in whatever
// way: cleanup does not run after a SIGKILL.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether a signal has stopped the process. The state is the
// letter after its name.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, ok := strings.Cut(string(stat), ") ")
	return err == nil && ok && strings.HasPrefix(state, "T")
}
