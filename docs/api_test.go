package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A user has to look through the names of the root package, so there are not many of them. A
// name is an exported type, function, method, constant or variable; fields are not counted.
func TestFewNames(t *testing.T) {
	var all []string
	for name, field := range declared(t)["."].names {
		if of, _, ok := strings.Cut(name, "."); !field && (!ok || token.IsExported(of)) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	t.Log(len(all), all)
	require.LessOrEqual(t, len(all), 75)
	require.Contains(t, all, "Limit.Rolling")
	require.Contains(t, all, "Local")
}

// docLink is a link of a comment, as [Name], [Type.Member], [pkg.Name] or [Type].Field.
var docLink = regexp.MustCompile(`(?:^|[\s(])\[\*?(?:([a-z]\w*)\.)?([A-Z]\w*[a-z]\w*(?:\.[A-Z]\w*)?)\](\.[A-Z]\w*)?`)

// Each link in a comment leads to a name of its package, or of one of ours that it imports.
func TestCommentsLink(t *testing.T) {
	links, packages := 0, declared(t)
	for dir, p := range packages {
		imports := map[string]string{"": dir}
		for _, f := range p.files {
			for _, i := range f.Imports {
				at := strings.Trim(i.Path.Value, `"`)
				imports[path.Base(at)] = path.Clean(strings.TrimPrefix(strings.TrimPrefix(at, module), "/"))
			}
		}
		for name, f := range p.files {
			for _, c := range f.Comments {
				for _, m := range docLink.FindAllStringSubmatch(c.Text(), -1) {
					if other, ours := packages[imports[m[1]]]; ours {
						links++
						member, of := m[2]+m[3], strings.Index(m[2]+m[3], ".")
						_, leads := other.names[member]
						for name := range other.names { // a member may be that of an embedded type
							leads = leads || of >= 0 && !token.IsExported(name) && strings.HasSuffix(name, member[of:])
						}
						assert.True(t, leads, "%s: %s leads nowhere", name, m[0])
					}
				}
			}
		}
	}
	require.Greater(t, links, 100)
}

// declarations are the exported names of a package, and whether each is a field; a method or field is Type.Name.
type declarations struct {
	names map[string]bool
	files map[string]*ast.File
}

// declared reads all packages of all modules, by directory.
func declared(t *testing.T) map[string]declarations {
	all := map[string]declarations{}
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		dir := filepath.ToSlash(filepath.Dir(name))
		if all[dir].names == nil {
			all[dir] = declarations{map[string]bool{}, map[string]*ast.File{}}
		}
		p := all[dir]
		p.files[name] = f
		add := func(of string, field bool, names ...*ast.Ident) {
			for _, n := range names {
				if n.IsExported() {
					p.names[of+n.Name] = field
				}
			}
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				of := ""
				if d.Recv != nil {
					ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool { // *Type[T]
						if id, ok := n.(*ast.Ident); ok && of == "" {
							of = id.Name + "."
						}
						return true
					})
				}
				add(of, false, d.Name)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						add("", false, s.Names...)
					case *ast.TypeSpec:
						add("", false, s.Name)
						ast.Inspect(s.Type, func(n ast.Node) bool {
							if member, ok := n.(*ast.Field); ok {
								add(s.Name.Name+".", true, member.Names...)
							}
							return true
						})
					}
				}
			}
		}
		return nil
	}))
	return all
}
