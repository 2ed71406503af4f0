package docs_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path"
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
// pass their security review. This list is complete. Add a new requirement here, with the
// module that requires it.
var requirements = map[string]string{
	goRedis: "", testify: "", goleak: "", xSync: "", // by us

	"github.com/cespare/xxhash/v2":  goRedis, // compiled into programs
	"go.uber.org/atomic":            goRedis, // compiled into programs
	"golang.org/x/sys":              goRedis, // compiled into programs
	"github.com/bsm/ginkgo/v2":      goRedis,
	"github.com/bsm/gomega":         goRedis,
	"github.com/klauspost/cpuid/v2": goRedis,
	"github.com/zeebo/xxh3":         goRedis,
	"github.com/stretchr/objx":      testify,
	"go.yaml.in/yaml/v3":            testify,
	"github.com/davecgh/go-spew":    goleak,
	"github.com/pmezard/go-difflib": goleak,
	"github.com/kr/pretty":          goleak,
	"gopkg.in/check.v1":             goleak,
	"gopkg.in/yaml.v3":              goleak,
}

func TestRequirements(t *testing.T) {
	type required struct {
		Path           string
		Main, Indirect bool
	}
	for _, m := range goList[required](t, "-m", "-json=Path,Main,Indirect", "all") {
		by, known := requirements[m.Path]
		require.True(t, m.Main || known && m.Indirect == (by != ""), "%s is required, indirectly: %t", m.Path, m.Indirect)
	}
}

// All modules get their updates by one list.
func TestUpdates(t *testing.T) {
	text, err := os.ReadFile(".github/dependabot.yml")
	require.NoError(t, err)
	for file := range files(t, "go.mod") {
		require.Contains(t, string(text), "\n      - "+path.Join("/", path.Dir(file))+"\n", "a module that nobody updates")
	}
}

// core has the packages that need only x/sync, so that a program with its own store links no
// Redis client. forTests has those that need test libraries, which no other package may.
var (
	core     = []string{"", "/backend", "/backend/memstore", "/sharding", "/httplimit", "/sloglimit"}
	forTests = []string{"/backend/backendtest", "/internal/redistest", "/internal/testnet"}
)

func TestImports(t *testing.T) {
	type pkg struct { // without its tests
		ImportPath string
		Deps       []string // transitive
	}
	seen := 0
	for _, p := range goList[pkg](t, "-json=ImportPath,Deps", "./...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		isCore := slices.Contains(core, name)
		if isCore {
			seen++
		}
		for _, dep := range p.Deps {
			domain, _, _ := strings.Cut(dep, "/") // a path of the standard library has none
			if isCore && strings.Contains(domain, ".") && !within(dep, module) && !within(dep, xSync) {
				t.Errorf("%s needs %s", p.ImportPath, dep)
			}
			if !slices.Contains(forTests, name) && (within(dep, "testing") || within(dep, testify) || within(dep, goleak)) {
				t.Errorf("%s needs %s", p.ImportPath, dep)
			}
		}
	}
	require.Len(t, core, seen)
}

func within(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

// goList runs go list on this module as its users see it, without go.work. It walks through
// all directories first: go test uses a cached result unless a file or a directory changes
// that the test itself has read.
func goList[T any](t *testing.T, args ...string) (all []T) {
	t.Helper()
	files(t, "go.mod")
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
