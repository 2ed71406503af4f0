package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whoever looks a function up in the documentation finds how it is used: each
// exported function and method appears in an Example of its package.
func TestDoorsHaveExamples(t *testing.T) {
	contrib, err := filepath.Glob("contrib/*/go.mod")
	require.NoError(t, err)
	dirs := []string{".", "httplimit", "sharding", "backend/memstore", "backend/redisstore", "sloglimit"}
	for _, mod := range contrib {
		dirs = append(dirs, filepath.Dir(mod))
	}
	for _, dir := range dirs {
		doors, shown := map[string]bool{}, map[string]bool{}
		for _, f := range parseDir(t, dir) {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				switch {
				case !ok:
				case strings.HasPrefix(fn.Name.Name, "Example"):
					ast.Inspect(fn, func(n ast.Node) bool {
						if s, ok := n.(*ast.SelectorExpr); ok {
							shown[s.Sel.Name] = true
						}
						return true
					})
				case isDoor(f, fn):
					doors[fn.Name.Name] = true
				}
			}
		}
		for door := range doors {
			assert.True(t, shown[door], "%s: no Example shows %s", dir, door)
		}
	}
}

// parseDir parses the Go files of a directory, those of tests too.
func parseDir(t *testing.T, dir string) (all []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".go") {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil, parser.ParseComments)
			require.NoError(t, err)
			all = append(all, f)
		}
	}
	return all
}

// forOthers are methods that make a type a Stringer, a Collector, a RoundTripper.
var forOthers = []string{"String", "Collect", "Describe", "RoundTrip", "CloseIdleConnections"}

// isDoor reports whether users call the function by its name: it is exported, no
// test, and no method that is there for an interface.
func isDoor(f *ast.File, fn *ast.FuncDecl) bool {
	if !fn.Name.IsExported() || strings.HasSuffix(f.Name.Name, "_test") || strings.HasPrefix(fn.Name.Name, "Test") ||
		strings.HasPrefix(fn.Name.Name, "Fuzz") || strings.HasPrefix(fn.Name.Name, "Benchmark") {
		return false
	}
	if fn.Recv == nil {
		return true
	}
	var receiver string
	ast.Inspect(fn.Recv, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			receiver = id.Name
		}
		return true
	})
	switch {
	case !ast.IsExported(receiver), slices.Contains(forOthers, fn.Name.Name), strings.Contains(fn.Doc.Text(), "implements backend."):
		return false
	}
	return true
}
