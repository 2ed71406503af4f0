package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is one patch and what its header says.
type mutant struct {
	name  string // of the file, without the ending
	path  string // absolute
	bug   string
	pkg   string // to be tested, from the root of the tree
	test  string // in it
	race  bool
	files []string // that it changes
}

// load reads the patches in dir whose names begin with one of only's, which are
// separated by commas.
func load(dir, only string) ([]mutant, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	var list []mutant
	for _, path := range paths {
		if !picked(filepath.Base(path), only) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
		m.path, m.name = path, strings.TrimSuffix(filepath.Base(path), ".patch")
		list = append(list, m)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no mutant %q in %s", only, dir)
	}
	return list, nil
}

func picked(name, only string) bool {
	for prefix := range strings.SplitSeq(only, ",") {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// parse reads a patch. Long lines of its header may go on in the next ones, indented.
func parse(text string) (m mutant, err error) {
	header, diff, ok := strings.Cut(text, "\n--- ")
	if !ok {
		return m, fmt.Errorf("no diff")
	}
	var by string
	for line := range strings.SplitSeq(strings.ReplaceAll(header, "\n  ", " "), "\n") {
		if rest, ok := strings.CutPrefix(line, "Bug: "); ok {
			m.bug = rest
		}
		if rest, ok := strings.CutPrefix(line, "Killed by: "); ok {
			by = rest
		}
	}
	for line := range strings.SplitSeq(diff, "\n") {
		if file, ok := strings.CutPrefix(line, "+++ b/"); ok {
			m.files = append(m.files, file)
		}
	}
	words := strings.Fields(by)
	switch {
	case m.bug == "":
		return m, fmt.Errorf("no \"Bug:\"")
	case len(words) < 2 || len(words) > 3 || len(words) == 3 && words[2] != "-race":
		return m, fmt.Errorf("\"Killed by:\" %q, want a package, a test and perhaps -race", by)
	case !strings.HasPrefix(words[0], ".") || !strings.HasPrefix(words[1], "Test"):
		return m, fmt.Errorf("\"Killed by:\" %q names no package of this tree or no test", by)
	case len(m.files) == 0:
		return m, fmt.Errorf("a diff without files")
	}
	m.pkg, m.test, m.race = words[0], words[1], len(words) == 3
	return m, nil
}

// pattern is go test's for the test and no other.
func (m mutant) pattern() string {
	parts := strings.Split(m.test, "/")
	for i, part := range parts {
		parts[i] = "^" + part + "$"
	}
	return strings.Join(parts, "/")
}
