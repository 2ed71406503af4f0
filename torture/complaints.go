package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// complaint is a request that ended in an error: for people, who want to know why.
type complaint struct {
	At     time.Time // when it ended
	Took   time.Duration
	During kind // of fault, when it began
	Role   role
	Part   int
	Text   string
}

func (c complaint) String() string {
	return fmt.Sprintf("%v limit on part %d, begun during %v, after %v: %s", c.Role, c.Part, c.During, c.Took, c.Text)
}

// complaintsSuffix makes the file's name from the journal's.
const complaintsSuffix = ".errors"

// complaints is the file in which a process writes them down, each at once: of a
// process that is killed they are there as well.
type complaints struct {
	mu   sync.Mutex
	file *os.File
	err  error // the first of writing
}

func openComplaints(path string) (*complaints, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	return &complaints{file: file}, err
}

func (c *complaints) note(m complaint) {
	text, err := json.Marshal(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		_, err = c.file.Write(append(text, '\n'))
	}
	if c.err == nil {
		c.err = err
	}
}

func (c *complaints) close() error {
	return errors.Join(c.err, c.file.Close())
}

// readComplaints lists what a process has written down so far. The last line may
// be cut off, of a process that was killed.
func readComplaints(path string) ([]complaint, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var list []complaint
	for in := json.NewDecoder(file); ; {
		var m complaint
		switch err := in.Decode(&m); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return list, nil
		case err != nil:
			return nil, err
		}
		list = append(list, m)
	}
}

// enough is how many complaints of a process it takes to see what is wrong.
const enough = 10

// complaintsElsewhere tells of the first requests that have failed since when on
// other parts of the store than the one that a fault befell, and by how much the
// machine has been late, which may explain it.
func (f *fleet) complaintsElsewhere(part int, since time.Time) string {
	var b strings.Builder
	for i, w := range f.workers {
		list, err := readComplaints(w.path + complaintsSuffix)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
		list = slices.DeleteFunc(list, func(m complaint) bool { return m.Part == part || m.At.Before(since) })
		for _, m := range list[:min(len(list), enough)] {
			fmt.Fprintf(&b, "%v on: process %d, %v\n", m.At.Sub(since).Round(time.Millisecond), i, m)
		}
	}
	fmt.Fprintf(&b, "timers have been late by up to %v", f.late())
	return b.String()
}

// late is by how much callers whose timer was due have been late, at most.
func (f *fleet) late() (most time.Duration) {
	for _, w := range f.workers {
		for r := range role(roles) {
			for k := range kind(kinds) {
				most = max(most, time.Duration(w.journal.Latency[r][k][wakeUp].Most.Load()))
			}
		}
	}
	return most
}
