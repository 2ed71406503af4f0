package promlimit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/contrib/promlimit"
)

// words are what the limiter's own code has for the labels of a store call.
type words struct{ ops, causes map[string]bool }

// limiterWords reads them from the code, where they have no exported names: the Op of
// every StoreCall, and the constants of type Cause but the empty one, which is no call.
func limiterWords(t *testing.T) words {
	t.Helper()
	files, err := filepath.Glob("../../*.go")
	require.NoError(t, err)
	files = append(files, "../../internal/next/next.go")
	w := words{map[string]bool{}, map[string]bool{}}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool { return w.read(t, n) })
	}
	return w
}

func (w words) read(t *testing.T, n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ValueSpec:
		if is(n.Type, "Cause") {
			for _, v := range n.Values {
				w.causes[text(t, v)] = true
			}
			delete(w.causes, "")
		}
	case *ast.CompositeLit:
		if is(n.Type, "StoreCall") {
			for _, e := range n.Elts {
				if e, ok := e.(*ast.KeyValueExpr); ok && is(e.Key, "Op") {
					w.ops[text(t, e.Value)] = true
				}
			}
		}
	}
	return true
}

func is(n ast.Expr, name string) bool {
	id, ok := n.(*ast.Ident)
	return ok && id.Name == name
}

// text is that of a literal; anything else is more than this test can count.
func text(t *testing.T, n ast.Expr) string {
	t.Helper()
	lit, ok := n.(*ast.BasicLit)
	require.True(t, ok, "not a literal: %T", n)
	s, err := strconv.Unquote(lit.Value)
	require.NoError(t, err)
	return s
}

// The number of series in the manual is that of all combinations that a limiter
// can tell of, and the manual of the hook names them.
func TestNumberOfSeries(t *testing.T) {
	w := limiterWords(t)
	require.Contains(t, w.ops, "sync")
	metrics := promlimit.New(nil)
	tell := func(op, cause string) {
		metrics.Hooks().StoreCall(reservoir.StoreCall{Op: op, Cause: cause})
		for class := range 256 {
			metrics.Hooks().StoreCall(reservoir.StoreCall{Op: op, Cause: cause, Err: &reservoir.StoreError{Class: backend.Class(class)}})
		}
	}
	for op := range w.ops {
		if op != "sync" {
			tell(op, "")
		}
	}
	for cause := range w.causes {
		tell("sync", cause)
	}
	series := len(scrape(t, with(t, metrics))["reservoir_store_call_duration_seconds"].Metric)
	manual, err := source.ReadFile("promlimit.go")
	require.NoError(t, err)
	said := regexp.MustCompile(`makes (\d+) series of the histogram`).FindSubmatch(manual)
	require.NotNil(t, said)
	assert.Equal(t, strconv.Itoa(series), string(said[1]))
	assert.Equal(t, slices.Sorted(maps.Keys(w.causes)), causesOfTheManual(t))
}

// causesOfTheManual are those that the comment of StoreCall.Cause lists.
func causesOfTheManual(t *testing.T) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../../options.go", nil, parser.ParseComments)
	require.NoError(t, err)
	var said string
	ast.Inspect(f, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && len(field.Names) == 1 && field.Names[0].Name == "Cause" {
			said = strings.TrimSpace(field.Comment.Text())
		}
		return true
	})
	list, ok := strings.CutPrefix(said, "of a sync: ")
	require.True(t, ok, said)
	all := strings.Split(strings.ReplaceAll(list, " or ", ", "), ", ")
	slices.Sort(all)
	return all
}
