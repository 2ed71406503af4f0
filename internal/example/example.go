// Package example starts servers, as tests do, for Example functions.
package example

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// Redis starts a server for an Example function, which must call stop at its end. stop may
// be called twice.
func Redis(args ...string) (addr string, stop func()) {
	t := new(outside)
	return redistest.Start(t, args...).Addr(), t.end
}

// Cluster starts a cluster of three masters with a replica each for an Example function,
// which must call stop at its end. The masters serve their keys while another one is away.
func Cluster() (c *redistest.Cluster, stop func()) {
	t := new(outside)
	c = redistest.StartCluster(t, 3, 1)
	for _, node := range c.Nodes {
		node.Do("config", "set", "cluster-require-full-coverage", "no")
	}
	return c, t.end
}

// outside has the methods of testing.TB that servers need.
type outside struct {
	testing.TB
	cleanups []func()
}

func (*outside) Helper() {}

// Fatalf ends the process.
func (t *outside) Fatalf(format string, args ...any) {
	t.end()
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

func (t *outside) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *outside) TempDir() string {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (t *outside) end() {
	cleanups := t.cleanups
	t.cleanups = nil
	for _, f := range slices.Backward(cleanups) {
		f()
	}
}
