package torture

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"sync"
)

// complaints counts the errors that requests ended in, by kind of fault and by
// text: for people, who want to know why. A process that is killed takes its own
// along.
type complaints struct {
	mu   sync.Mutex
	list map[kind]map[string]int64
}

// complaintsSuffix makes the file's name from the journal's.
const complaintsSuffix = ".errors"

func (c *complaints) note(during kind, err error) {
	if err != nil {
		c.add(during, err.Error(), 1)
	}
}

func (c *complaints) add(during kind, text string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list == nil {
		c.list = make(map[kind]map[string]int64)
	}
	if c.list[during] == nil {
		c.list[during] = make(map[string]int64)
	}
	c.list[during][text] += n
}

func (c *complaints) save(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, err := json.Marshal(c.list)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// load adds what a process has saved, if it did.
func (c *complaints) load(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var list map[kind]map[string]int64
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	for during, texts := range list {
		for text, n := range texts {
			c.add(during, text, n)
		}
	}
	return nil
}
