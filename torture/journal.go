package torture

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/go-reservoir/reservoir"
)

// Bounds of a journal. Its file is sparse: what is not used takes no room.
const (
	maxLines   = roles * 3 // on each part of the store
	maxWindows = 1 << 12
)

// Journal is what one process writes down, in a file that it shares with the
// runner. It is made of atomics alone, and a count is raised as soon as it is
// known: a process that is killed loses at most the request that each of its
// goroutines was just being told about.
type Journal struct {
	*page
	mem []byte
	mu  sync.Mutex // makes windows in order; the writer's alone
}

// page is the layout of the file.
type page struct {
	Phase  atomic.Int64 // the fault that is on; the runner writes it
	Finish atomic.Int64 // 1 asks the process to end; the runner writes it
	State  atomic.Int64
	Beat   atomic.Int64 // requests that were made, of any kind

	Lines   [maxLines]line
	Latency [roles][kinds]latencies
}

// States of a process.
const (
	starting = iota
	running
	closed    // everything was handed back
	closedBad // something could not be
)

// line is what became of the requests for one key.
type line struct {
	Requests, Allowed, Denied, Failed, Fallback atomic.Int64

	Spent    atomic.Int64 // tokens, refunded ones included
	Alone    atomic.Int64 // of these, admitted without the store
	Refunded atomic.Int64
	Held     atomic.Int64 // in memory when the last call had ended
	Calls    atomic.Int64 // to the store, failed ones included
	Faults   atomic.Int64 // calls that failed
	LastOK   atomic.Int64 // when a call last succeeded, Unix ns
	LastBad  atomic.Int64 // when a request last ended in an error, Unix ns
	Away     atomic.Int64 // 1 while the breaker is open, as hooks tell

	// Late is the tokens of requests that were made after the window was over;
	// Overrun counts requests from stock whose answer came long after it.
	Late, Overrun atomic.Int64

	Stats   stats // when the limiter was closed
	Windows [maxWindows]entry
}

// entry is what was spent in one window.
type entry struct{ Reset, Spent atomic.Int64 }

// stats is the part of reservoir.Stats that is judged.
type stats struct {
	Taken, Refunded, Spent, Returned, Expired, Held, Unknown, Recovered, Reasserted atomic.Int64
}

func (s *stats) store(from reservoir.Stats) {
	s.Taken.Store(from.Taken)
	s.Refunded.Store(from.Refunded)
	s.Spent.Store(from.Spent)
	s.Returned.Store(from.Returned)
	s.Expired.Store(from.Expired)
	s.Held.Store(from.Held)
	s.Unknown.Store(from.Unknown)
	s.Recovered.Store(from.Recovered)
	s.Reasserted.Store(from.Reasserted)
}

// openJournal maps the file, which it makes if need be.
func openJournal(path string) (*Journal, error) {
	const size = int(unsafe.Sizeof(page{}))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the journal: %w", err)
	}
	return &Journal{page: (*page)(unsafe.Pointer(&mem[0])), mem: mem}, nil
}

func (j *Journal) close() error {
	j.page = nil
	return syscall.Munmap(j.mem)
}

// spend notes tokens that were admitted in the window that ends at reset.
func (j *Journal) spend(l *line, reset, n int64) {
	l.Spent.Add(n)
	if e := j.window(l, reset); e != nil {
		e.Spent.Add(n)
	}
}

// window finds or makes the entry of a window, which nearly always is the newest.
func (j *Journal) window(l *line, reset int64) *entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	free := 0
	for ; free < maxWindows && l.Windows[free].Reset.Load() != 0; free++ {
	}
	for i := free - 1; i >= 0; i-- {
		if l.Windows[i].Reset.Load() == reset {
			return &l.Windows[i]
		}
	}
	if free == maxWindows {
		return nil // the judge misses it: the sum of all windows is less than Spent
	}
	l.Windows[free].Reset.Store(reset)
	return &l.Windows[free]
}

// lateness is how much later than its window's end an answer from stock may come
// on a busy machine without having waited for anything but a processor.
const lateness = 50 * time.Millisecond

// answered notes what one request for n tokens was told.
func (j *Journal) answered(l *line, n int64, r reservoir.Result, err error, begin time.Time, took time.Duration) {
	l.Requests.Add(1)
	j.Beat.Add(1)
	switch {
	case err != nil:
		l.Failed.Add(1)
		l.LastBad.Store(begin.Add(took).UnixNano())
	case !r.Allowed:
		l.Denied.Add(1)
	case r.Source == reservoir.Fallback:
		l.Fallback.Add(1)
		l.Alone.Add(n)
		j.spend(l, r.Reset.UnixMilli(), n)
	default:
		l.Allowed.Add(1)
		j.spend(l, r.Reset.UnixMilli(), n)
		if begin.UnixMilli() > r.Reset.UnixMilli() {
			l.Late.Add(n)
		} else if r.Source == reservoir.Local && begin.Add(took).After(r.Reset.Add(lateness)) {
			l.Overrun.Add(1)
		}
	}
}
