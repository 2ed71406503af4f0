// Mutants changes the pure parts of the library in one place at a time, and expects the
// tests of the part to fail. It compares the survivors with survivors.txt.
//
// It negates conditions, moves the boundaries of comparisons, exchanges operators and min
// and max, drops statements and assignments, and returns zero values. The tree stays
// unchanged, because the compiler gets the changed file as an overlay.
//
// We wrote it because gremlins v0.6.0, the maintained one of the public tools, drops no
// statements, returns no zeros and has no list of explained survivors.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

var parts = []string{"account", "next", "lease", "demand", "waiters", "breaker", "keytable", "slots"}

func main() {
	only := flag.String("only", "", "run the mutants of this part; empty = all parts")
	workers := flag.Int("workers", 2, "tests at a time")
	flag.Parse()
	explained, err := os.ReadFile("survivors.txt")
	if err == nil && *only != "" {
		parts = []string{*only}
	}
	bad := 0
	for _, part := range parts {
		if err == nil {
			var n int
			n, err = run(part, *workers, string(explained))
			bad += n
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || bad > 0 {
		os.Exit(1)
	}
}

// run reports how many of the part's mutants survive without an explanation, or are
// explained and do not survive.
func run(part string, workers int, explained string) (bad int, err error) {
	dir, err := filepath.Abs(filepath.Join("..", "..", "internal", part))
	if err != nil {
		return 0, err
	}
	if out, ok := test(dir, nil); !ok {
		return 0, fmt.Errorf("%s fails without a mutant:\n%s", part, out)
	}
	mutants, err := load(dir)
	if err != nil {
		return 0, err
	}
	var wg sync.WaitGroup
	busy := make(chan struct{}, workers)
	for _, m := range mutants {
		busy <- struct{}{}
		wg.Go(func() {
			m.out, m.survives = test(dir, m)
			<-busy
		})
	}
	wg.Wait()
	return report(part, mutants, explained), nil
}

// report compares the survivors with the explained ones. A line names a mutant, and the
// indented lines below it say why it is harmless.
func report(part string, mutants []*mutant, explained string) (bad int) {
	alive, counts := map[string]bool{}, [3]int{}
	for _, m := range mutants {
		switch {
		case m.survives:
			counts[0]++
			alive[m.name] = true
			if !strings.Contains("\n"+explained, "\n"+m.name+"\n") {
				fmt.Printf("survives: line %d: %s\n", m.line, m.name)
				bad++
			}
		case strings.Contains(m.out, "[build failed]"):
			counts[1]++
		default:
			counts[2]++
		}
	}
	for name := range strings.Lines(explained) {
		if name = strings.TrimSpace(name); strings.HasPrefix(name, part+"/") && !alive[name] {
			fmt.Printf("explained, and found by a test now: %s\n", name)
			bad++
		}
	}
	fmt.Printf("%-8s %3d mutants found, %d survive, %d do not build\n", part, counts[2], counts[0], counts[1])
	return bad
}

// test runs the tests of the package in dir, with m in it unless m is nil.
func test(dir string, m *mutant) (out string, ok bool) {
	args := []string{"test", "-count=1", "-timeout=20s", "-failfast", "-vet=off"}
	if m != nil {
		tmp, err := os.MkdirTemp("", "mutant")
		if err != nil {
			return err.Error(), false
		}
		defer os.RemoveAll(tmp)
		file, overlay := filepath.Join(tmp, "mutant.go"), filepath.Join(tmp, "overlay.json")
		text, _ := json.Marshal(map[string]any{"Replace": map[string]string{m.path: file}})
		if os.WriteFile(file, m.source, 0o600) != nil || os.WriteFile(overlay, text, 0o600) != nil {
			return "the disk is full", false
		}
		args = append(args, "-overlay="+overlay)
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Dir = dir
	b, err := cmd.CombinedOutput()
	return string(b), err == nil
}

// mutant is a file with one place changed.
type mutant struct {
	name     string // file, function and change; no line number, because lines move
	path     string
	line     int
	source   []byte
	out      string
	survives bool
}

func load(dir string) (all []*mutant, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, path, source, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				v := visitor{file: fset.File(f.Pos()), path: path, source: source, f: f}
				if !strings.Contains(v.text(f.Body), "invariant.") { // active only under -race
					ast.Inspect(f.Body, v.visit)
				}
				all = append(all, v.mutants...)
			}
		}
	}
	return all, err
}

type visitor struct {
	file    *token.File
	path    string
	source  []byte
	f       *ast.FuncDecl
	mutants []*mutant
}

func (v *visitor) text(n ast.Node) string {
	return string(v.source[v.file.Offset(n.Pos()):v.file.Offset(n.End())])
}

// change adds the mutant in which n is replaced by text.
func (v *visitor) change(n ast.Node, text string) {
	from, to := v.file.Offset(n.Pos()), v.file.Offset(n.End())
	old := strings.Join(strings.Fields(v.text(n)), " ")
	v.mutants = append(v.mutants, &mutant{
		name: strings.TrimSpace(fmt.Sprintf("%s/%s %s: %s -> %s", filepath.Base(filepath.Dir(v.path)), filepath.Base(v.path), v.f.Name.Name, old, text)),
		path: v.path, line: v.file.Line(n.Pos()),
		source: bytes.Join([][]byte{v.source[:from], []byte(text), v.source[to:]}, nil),
	})
}

var swaps = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">", token.EQL: "!=", token.NEQ: "==",
	token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*", token.REM: "*", token.LAND: "||", token.LOR: "&&",
}

func (v *visitor) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IfStmt:
		v.negate(n.Cond)
	case *ast.ForStmt:
		v.negate(n.Cond)
	case *ast.SwitchStmt:
		if n.Tag == nil {
			for _, c := range n.Body.List {
				for _, cond := range c.(*ast.CaseClause).List {
					v.negate(cond)
				}
			}
		}
	case *ast.BinaryExpr:
		if op := swaps[n.Op]; op != "" {
			v.change(n, v.text(n.X)+" "+op+" "+v.text(n.Y))
		}
	case *ast.CallExpr:
		if name := v.text(n.Fun); name == "min" || name == "max" {
			v.change(n, map[string]string{"min": "max", "max": "min"}[name]+strings.TrimPrefix(v.text(n), name))
		}
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt:
		if !strings.HasSuffix(v.text(n), ".check()") { // active only under -race
			v.change(n, "")
		}
	case *ast.AssignStmt:
		v.drop(n)
	case *ast.ReturnStmt:
		v.zero(n)
	}
	return true
}

// negate negates a condition, except == and !=, which visit exchanges.
func (v *visitor) negate(cond ast.Expr) {
	if b, ok := cond.(*ast.BinaryExpr); cond != nil && !(ok && (b.Op == token.EQL || b.Op == token.NEQ)) {
		v.change(cond, "!("+v.text(cond)+")")
	}
}

// drop removes an assignment, but still uses the assigned values.
func (v *visitor) drop(n *ast.AssignStmt) {
	if n.Tok == token.DEFINE {
		return
	}
	blanks := slices.Repeat([]string{"_"}, len(n.Lhs))
	var values []string
	for _, e := range n.Rhs {
		values = append(values, v.text(e))
	}
	v.change(n, strings.Join(blanks, ", ")+" = "+strings.Join(values, ", "))
}

// zero returns zero values.
func (v *visitor) zero(n *ast.ReturnStmt) {
	text := strings.TrimPrefix(v.text(n), "return ")
	if v.f.Type.Results == nil || slices.Contains([]string{"0", "0, 0", "0, false", "false", "nil"}, text) {
		return
	}
	var values []string
	for _, r := range v.f.Type.Results.List {
		values = append(values, slices.Repeat([]string{"*new(" + v.text(r.Type) + ")"}, max(len(r.Names), 1))...)
	}
	v.change(n, "return "+strings.Join(values, ", "))
}
