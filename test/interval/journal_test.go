package interval_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/test/interval"
)

// now reads CLOCK_BOOTTIME, in nanoseconds. All processes of the machine have the same one, nobody sets it, and
// it goes on while the machine is suspended. Times of package time cannot be compared among processes.
func now() int64 {
	const boottime = 7
	var t syscall.Timespec
	if _, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&t)), 0); err != 0 {
		panic(err)
	}
	return t.Nano()
}

// journal is a file in memory that one process writes and the runner reads. So it has all that the
// process did until the instruction before its SIGKILL.
type journal struct {
	used    atomic.Int64 // entries
	counts  [maxSeries][whats]atomic.Int64
	entries [1 << 17]entry
}

const maxSeries = 8

// entry is a call. Its end is written last, so a call without one was under way.
type entry struct {
	series, reset                atomic.Int64 // reset is 1 if the call is a Reset
	begin, end                   atomic.Int64 // by now
	tokens, window, back, backAt atomic.Int64 // see interval.Spend
	source                       atomic.Int64 // of the decision
}

// what is something that a process counts in its journal, for each series.
type what int

const (
	called  what = iota // calls that ended
	refused             // of these
	failed
	waited       // admitted after a Wait
	grouped      // admitted in a group
	direct       // admitted by a call for one request alone
	local        // admitted without a call
	refunded     // requests
	settledBelow // their charge
	settledAbove
	reset
	refreshed
	whats = iota
)

var whatNames = [whats]string{
	"calls", "refused", "failed", "after a Wait", "in groups", "direct", "from stock", "refunded", "settled below", "settled above", "resets", "refreshes",
}

// entry returns a fresh entry. A journal that is full ends the process.
func (j *journal) entry(series int) *entry {
	e := &j.entries[j.used.Add(1)-1]
	e.series.Store(int64(series))
	return e
}

// all calls do with each entry that has begun.
func (j *journal) all(do func(*entry)) {
	for i := range j.used.Load() {
		if e := &j.entries[i]; e.begin.Load() != 0 {
			do(e)
		}
	}
}

// read adds the journal to the histories of the series. A Reset may be carried out late.
func (j *journal) read(process int, to []interval.History, late time.Duration) {
	j.all(func(e *entry) {
		end, h := e.end.Load(), &to[e.series.Load()]
		switch {
		case e.reset.Load() != 0:
			if end == 0 {
				end = now()
			}
			h.Resets = append(h.Resets, interval.Span{Begin: e.begin.Load(), End: end + int64(late)})
		case end != 0 && e.tokens.Load() != 0:
			h.Spends = append(h.Spends, interval.Spend{
				Begin: e.begin.Load(), End: end, Tokens: e.tokens.Load(), Window: e.window.Load(), Back: e.back.Load(), BackAt: e.backAt.Load(),
				By: fmt.Sprintf("process %d, %v", process, reservoir.Source(e.source.Load())),
			})
		}
	})
}

// underWay counts the calls that have not ended.
func (j *journal) underWay() (n int64) {
	j.all(func(e *entry) {
		if e.end.Load() == 0 {
			n++
		}
	})
	return n
}

// shared maps a file as a T, which has no pointers. It makes the file, of zeros, if there is none.
func shared[T any](path string) *T {
	size := unsafe.Sizeof(*new(T))
	f := must(os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600))
	defer f.Close()
	must(0, f.Truncate(int64(size)))
	memory := must(syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))
	return (*T)(unsafe.Pointer(&memory[0]))
}

// unmap ends that.
func unmap[T any](t testing.TB, p *T) {
	require.NoError(t, syscall.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))))
}

// must ends a process that cannot go on.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
