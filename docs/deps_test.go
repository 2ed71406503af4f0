package docs_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module  = "github.com/go-reservoir/reservoir"
	goRedis = "github.com/redis/go-redis/v9"
	testify = "github.com/stretchr/testify"
	goleak  = "go.uber.org/goleak"
	xSync   = "golang.org/x/sync"
)

// Programs that import the library inherit its requirements, and each requirement has to
// pass their security review. This list is complete. Add a new requirement here, with its
// reason.
var (
	direct = []string{goRedis, testify, goleak, xSync}

	// brought maps indirect requirements to the module that requires them. A "compiled"
	// one ends up in a program; the others only take part in the choice of versions.
	brought = map[string]string{
		"github.com/cespare/xxhash/v2":  goRedis, // compiled
		"go.uber.org/atomic":            goRedis, // compiled
		"golang.org/x/sys":              goRedis, // compiled
		"github.com/bsm/ginkgo/v2":      goRedis,
		"github.com/bsm/gomega":         goRedis,
		"github.com/klauspost/cpuid/v2": goRedis,
		"github.com/zeebo/xxh3":         goRedis,
		"github.com/stretchr/objx":      testify,
		"go.yaml.in/yaml/v3":            testify, // compiled into tests
		"github.com/davecgh/go-spew":    goleak,
		"github.com/pmezard/go-difflib": goleak,
		"github.com/kr/pretty":          goleak,
		"gopkg.in/check.v1":             goleak,
		"gopkg.in/yaml.v3":              goleak,
	}
)

func TestRequirements(t *testing.T) {
	type required struct {
		Path           string
		Main, Indirect bool
	}
	for _, m := range goList[required](t, "-m", "-json=Path,Main,Indirect", "all") {
		switch _, known := brought[m.Path]; {
		case m.Main, slices.Contains(direct, m.Path):
		case !m.Indirect:
			t.Errorf("%s is required: add it to the direct requirements with its reason, or do without", m.Path)
		case !known:
			t.Errorf("%s came along: who brings it?", m.Path)
		}
	}
}

// The limiter and the stores without a server need only x/sync, so that a program with
// its own store links no Redis client.
func TestCoreImports(t *testing.T) {
	core := map[string]bool{
		module:                       false,
		module + "/backend":          false,
		module + "/backend/memstore": false,
		module + "/sharding":         false,
		module + "/httplimit":        false,
		module + "/sloglimit":        false,
	}
	for _, p := range packages(t) {
		if _, ok := core[p.ImportPath]; !ok {
			continue
		}
		core[p.ImportPath] = true
		for _, dep := range p.Deps {
			if !standard(dep) && !within(dep, module) && !within(dep, xSync) {
				t.Errorf("%s needs %s", p.ImportPath, dep)
			}
		}
	}
	for path, seen := range core {
		require.True(t, seen, "%s is not there", path)
	}
}

// Test libraries have no place in a user's binary.
func TestNoTestLibraries(t *testing.T) {
	forTests := []string{module + "/backend/backendtest", module + "/internal/redistest", module + "/internal/testnet", module + "/internal/program", module + "/internal/example"}
	for _, p := range packages(t) {
		if slices.Contains(forTests, p.ImportPath) {
			continue
		}
		for _, dep := range p.Deps {
			if within(dep, "testing") || within(dep, testify) || within(dep, goleak) {
				t.Errorf("%s needs %s", p.ImportPath, dep)
			}
		}
	}
}

// pkg is a package without its tests.
type pkg struct {
	ImportPath string
	Deps       []string // transitive imports
}

func packages(t *testing.T) []pkg { return goList[pkg](t, "-json=ImportPath,Deps", "./...") }

func within(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

// standard reports whether path is in the standard library, whose paths do not begin with
// a domain.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// goList runs go list on this module as its users see it, without go.work.
func goList[T any](t *testing.T, args ...string) (all []T) {
	t.Helper()
	uncache(t)
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var one T
		require.NoError(t, dec.Decode(&one))
		all = append(all, one)
	}
	require.NotEmpty(t, all)
	return all
}

// uncache reads every directory of the module. go test uses a cached result unless a file
// or directory changes that the test itself has read, and files read by go list do not
// count.
func uncache(t *testing.T) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(_ string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == ".git" {
			return filepath.SkipDir
		}
		return err
	}))
}
