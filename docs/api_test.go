package docs_test

import (
	"go/ast"
	"go/build"
	"go/doc"
	gocomment "go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A user has to look through the names of the root package, so there are not many of them. A
// name is an exported type, function, method, constant or variable; fields are not counted.
func TestFewNames(t *testing.T) {
	p := documented(t, module)
	all := p.names()
	t.Log(len(all), all)
	require.LessOrEqual(t, len(all), 75)
	require.Contains(t, all, "Limit.Rolling")
	require.Contains(t, all, "Local")
}

// Each link in a comment of an exported name or field leads somewhere, and each [Type].Field is one.
func TestCommentsLink(t *testing.T) {
	links := 0
	for _, at := range packages(t) {
		p := documented(t, at)
		for what, text := range p.comments() {
			for _, l := range p.links(text) {
				links++
				assert.True(t, l.leads(t), "%s, %s: %s leads nowhere", at, what, l)
			}
		}
	}
	require.Greater(t, links, 100)
}

// pkg is what go doc shows of a package.
type pkg struct {
	*doc.Package
}

var read = struct {
	sync.Mutex
	packages map[string]*pkg
}{packages: map[string]*pkg{}}

// documented reads a package of ours or of the standard library. It returns nil for others.
func documented(t *testing.T, at string) *pkg {
	read.Lock()
	defer read.Unlock()
	p, ok := read.packages[at]
	if !ok {
		p = parse(t, at)
		read.packages[at] = p
	}
	return p
}

func parse(t *testing.T, at string) *pkg {
	dir := filepath.Join(build.Default.GOROOT, "src", filepath.FromSlash(at))
	if at == module || strings.HasPrefix(at, module+"/") {
		dir = "." + strings.TrimPrefix(at, module)
	} else if host, _, _ := strings.Cut(at, "/"); strings.Contains(host, ".") {
		return nil
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if match, err := build.Default.MatchFile(dir, filepath.Base(name)); err != nil || !match || strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, f)
	}
	require.NotEmpty(t, files, at)
	p, err := doc.NewFromFiles(fset, files, at)
	require.NoError(t, err)
	return &pkg{p}
}

// packages returns the packages of all modules that have code.
func packages(t *testing.T) (all []string) {
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			all = append(all, path.Join(module, filepath.ToSlash(filepath.Dir(name))))
		}
		return err
	}))
	slices.Sort(all)
	return slices.Compact(all)
}

// names returns what go doc lists: a name, or Type.Method.
func (p *pkg) names() (all []string) {
	values := func(vs []*doc.Value) {
		for _, v := range vs {
			all = append(all, slices.DeleteFunc(slices.Clone(v.Names), func(n string) bool { return !token.IsExported(n) })...)
		}
	}
	funcs := func(of string, fs []*doc.Func) {
		for _, f := range fs {
			all = append(all, of+f.Name)
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs("", p.Funcs)
	for _, t := range p.Types {
		all = append(all, t.Name)
		values(t.Consts)
		values(t.Vars)
		funcs("", t.Funcs)
		funcs(t.Name+".", t.Methods)
	}
	return all
}

// comments returns the text of each comment by what it is about.
func (p *pkg) comments() map[string]string {
	all := map[string]string{"package": p.Doc}
	inside := func(what string, decl ast.Node) { // those of fields and of single constants
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				for _, name := range n.Names {
					all[what+"."+name.Name] = n.Doc.Text() + "\n\n" + n.Comment.Text()
				}
			case *ast.ValueSpec:
				all[n.Names[0].Name] = n.Doc.Text() + "\n\n" + n.Comment.Text()
			}
			return true
		})
	}
	values := func(vs []*doc.Value) {
		for _, v := range vs {
			all[strings.Join(v.Names, ", ")+" together"] = v.Doc
			inside("", v.Decl)
		}
	}
	funcs := func(of string, fs []*doc.Func) {
		for _, f := range fs {
			all[of+f.Name] = f.Doc
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs("", p.Funcs)
	for _, t := range p.Types {
		all[t.Name] = t.Doc
		inside(t.Name, t.Decl)
		values(t.Consts)
		values(t.Vars)
		funcs("", t.Funcs)
		funcs(t.Name+".", t.Methods)
	}
	return all
}

// docLink is a link of a comment. If it stayed in brackets, of is the text.
type docLink struct {
	of, pkg, recv, name, field string
}

func (l docLink) String() string { return "[" + l.of + "]" + l.field }

var (
	brackets = regexp.MustCompile(`\[(\*?(?:[a-z]\w*\.)?[A-Z]\w*(?:\.[A-Z]\w*)?)\]`)
	after    = regexp.MustCompile(`^\.([A-Z]\w*)`)
)

// links returns the links of a comment, and what looks like one and is none.
func (p *pkg) links(text string) (all []docLink) {
	texts := func(ts []gocomment.Text) {
		for i, t := range ts {
			switch t := t.(type) {
			case gocomment.Plain:
				for _, m := range brackets.FindAllStringSubmatch(string(t), -1) {
					all = append(all, docLink{of: m[1]})
				}
			case *gocomment.DocLink:
				l := docLink{pkg: t.ImportPath, recv: t.Recv, name: t.Name}
				if l.of = path.Join(l.pkg, l.recv, l.name); l.pkg == "" {
					l.pkg = p.ImportPath
				}
				if i+1 < len(ts) {
					if next, ok := ts[i+1].(gocomment.Plain); ok {
						l.field = after.FindString(string(next))
					}
				}
				all = append(all, l)
			}
		}
	}
	var blocks func(bs []gocomment.Block)
	blocks = func(bs []gocomment.Block) {
		for _, b := range bs {
			switch b := b.(type) {
			case *gocomment.Paragraph:
				texts(b.Text)
			case *gocomment.Heading:
				texts(b.Text)
			case *gocomment.List:
				for _, item := range b.Items {
					blocks(item.Content)
				}
			}
		}
	}
	blocks(p.Parser().Parse(text).Content)
	return all
}

// leads reports whether the link's target exists. Packages of other modules are not read.
func (l docLink) leads(t *testing.T) bool {
	if l.pkg == "" {
		return false
	}
	p := documented(t, l.pkg)
	switch {
	case p == nil || l.name == "":
		return l.field == ""
	case l.field != "":
		return p.has(l.name, strings.TrimPrefix(l.field, "."))
	case l.recv != "":
		return slices.Contains(p.names(), l.recv+"."+l.name)
	}
	return slices.Contains(p.names(), l.name)
}

// has reports whether a type has that field or method.
func (p *pkg) has(name, member string) (found bool) {
	for _, t := range p.Types {
		if t.Name != name {
			continue
		}
		found = slices.ContainsFunc(t.Methods, func(f *doc.Func) bool { return f.Name == member })
		ast.Inspect(t.Decl, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok {
				found = found || slices.ContainsFunc(f.Names, func(i *ast.Ident) bool { return i.Name == member })
			}
			return true
		})
	}
	return found
}
