package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// terminal returns both ends of a terminal: that of the person, and that of the program.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = person.Close() })
	var number, locked int32
	for request, arg := range map[uintptr]*int32{syscall.TIOCSPTLCK: &locked, syscall.TIOCGPTN: &number} {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, person.Fd(), request, uintptr(unsafe.Pointer(arg)))
		require.Zero(t, errno)
	}
	program, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return person, program
}

// On a terminal the last row moves, and Ctrl-C ends everything soon, with a summary.
func TestDemoOnATerminal(t *testing.T) {
	person, tty := terminal(t)
	cmd, requireNothingLeft := demo(t, "-for", "20s")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, tty.Close())
	var shown strings.Builder
	until := func(want string) {
		for b := make([]byte, 4096); want == "" || !strings.Contains(shown.String(), want); {
			n, err := person.Read(b)
			shown.Write(b[:n])
			if err != nil { // the program has ended
				require.Empty(t, want, "%v\n%s", err, shown.String())
				return
			}
		}
	}
	until("is killed (signal: killed)")
	_, err := io.WriteString(person, "\x03")
	require.NoError(t, err)
	until("")
	require.NoError(t, cmd.Wait(), shown.String())
	requireNothingLeft()
	require.Regexp(t, `\r +0\.\d s [^\n]+\x1b\[K\r +[01]\.\d s [^\n]+\x1b\[K\r`, shown.String())
	require.Contains(t, shown.String(), "The killed process held ")
	require.Regexp(t, `It was stopped after [4-9]\.\d s`, shown.String())
}
