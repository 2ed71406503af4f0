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

// The documentation of each exported function, method, constant and variable shows how it
// is used: it appears in an Example of its package. Types appear there by their functions.
func TestDoorsHaveExamples(t *testing.T) {
	for _, dir := range public(t) {
		doors, shown := map[string]bool{}, map[string]bool{}
		for name, f := range parseDir(t, dir) {
			test := strings.HasSuffix(name, "_test.go")
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				switch {
				case !ok && !test:
					for _, name := range values(d) {
						doors[name] = true
					}
				case !ok:
				case strings.HasPrefix(fn.Name.Name, "Example"):
					ast.Inspect(fn, func(n ast.Node) bool {
						if s, ok := n.(*ast.SelectorExpr); ok {
							shown[s.Sel.Name] = true
						}
						return true
					})
				case !test && isDoor(fn):
					doors[fn.Name.Name] = true
				}
			}
		}
		for door := range doors {
			assert.True(t, shown[door], "%s: no Example shows %s", dir, door)
		}
	}
}

// A variable can be assigned, in any importer, for the whole program. So only errors, which
// errors.Is must be able to compare, are variables; policies and limits are functions.
func TestExportedVariablesAreErrors(t *testing.T) {
	for _, dir := range public(t) {
		for file, f := range parseDir(t, dir) {
			for _, d := range f.Decls {
				if v, ok := d.(*ast.GenDecl); ok && v.Tok == token.VAR && !strings.HasSuffix(file, "_test.go") {
					for _, name := range values(d) {
						assert.True(t, strings.HasPrefix(name, "Err"), "%s: %s can be assigned", dir, name)
					}
				}
			}
		}
	}
}

// public returns the directories of the packages that users import.
func public(t *testing.T) []string {
	t.Helper()
	contrib, err := filepath.Glob("contrib/*/go.mod")
	require.NoError(t, err)
	dirs := []string{".", "backend", "backend/memstore", "backend/redisstore", "httplimit", "sharding", "sloglimit"}
	for _, mod := range contrib {
		dirs = append(dirs, filepath.Dir(mod))
	}
	return dirs
}

// parseDir parses the Go files of a directory, by name, those of tests too.
func parseDir(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	all := map[string]*ast.File{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".go") {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil, parser.ParseComments)
			require.NoError(t, err)
			all[e.Name()] = f
		}
	}
	return all
}

// values returns the exported constants and variables of a declaration.
func values(d ast.Decl) (names []string) {
	for _, spec := range d.(*ast.GenDecl).Specs {
		if v, ok := spec.(*ast.ValueSpec); ok {
			for _, name := range v.Names {
				if name.IsExported() {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// forOthers has the methods that make a type a Stringer, a Collector or a RoundTripper.
var forOthers = []string{"String", "Collect", "Describe", "RoundTrip", "CloseIdleConnections"}

// isDoor reports whether users call the function by its name: it is exported, and not a
// method of forOthers.
func isDoor(fn *ast.FuncDecl) bool {
	if !fn.Name.IsExported() {
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
