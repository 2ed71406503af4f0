package docs_test

import (
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// The commands of documents run as follows. A server of the test replaces localhost:6379,
// and each directory that `go run` names is built once.

// stage is where commands run.
type stage struct {
	dir    string // of the test, with what the commands read and write
	server *redistest.Server
	built  sync.Map // directory → func() (string, error)
}

func newStage(t *testing.T) *stage {
	files(t, ".go") // go build reads these: see uncache
	s := &stage{dir: t.TempDir(), server: redistest.Start(t)}
	trace := "time,key\n2026-11-21T12:00:00Z,user:1\n2026-11-21T12:00:01.5Z,user:2\n2026-11-21T12:01:00Z,user:1\n"
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "requests.csv"), []byte(trace), 0o600))
	return s
}

// build returns the path of the program of a directory.
func (s *stage) build(t *testing.T, dir string) string {
	t.Helper()
	once, _ := s.built.LoadOrStore(dir, sync.OnceValues(func() (string, error) {
		to := filepath.Join(s.dir, path.Base(dir)+"-program")
		out, err := exec.Command("go", "build", "-o", to, dir).CombinedOutput()
		if err != nil {
			return string(out), err
		}
		return to, nil
	}))
	program, err := once.(func() (string, error))()
	require.NoError(t, err, program)
	return program
}

var threeProcesses = regexp.MustCompile(`^for i in 1 2 3; do \./hello & done; wait$`)

// checks maps the beginning of a command to its check. Entries for commands that do not
// run give the reason.
var checks = []struct {
	like  *regexp.Regexp
	check func(t *testing.T, s *stage, command string)
}{
	// These take minutes or install software. Only the target and its variables are
	// checked.
	{regexp.MustCompile(`^make( |$)`), func(t *testing.T, _ *stage, c string) { requireTarget(t, c) }},
	{regexp.MustCompile(`^go test `), func(t *testing.T, _ *stage, c string) { requireTests(t, ".", c) }},
	{regexp.MustCompile(`^\.ci/run$`), func(t *testing.T, _ *stage, c string) { require.FileExists(t, c) }},
	// These change the work tree.
	{regexp.MustCompile(`^git stash( pop)?$`), func(*testing.T, *stage, string) {}},
	// This is downloaded.
	{regexp.MustCompile(`^go run golang\.org/x/perf/cmd/benchstat@latest `), func(*testing.T, *stage, string) {}},
	{regexp.MustCompile(`^go get ` + regexp.QuoteMeta(module)), func(t *testing.T, _ *stage, c string) {
		require.DirExists(t, "."+strings.TrimSuffix(strings.TrimPrefix(c, "go get "+module), "@main"))
	}},
	{regexp.MustCompile(`^go mod edit -replace=` + regexp.QuoteMeta(module)), func(t *testing.T, _ *stage, c string) {
		_, to, _ := strings.Cut(c, "=../reservoir")
		require.DirExists(t, "."+to)
	}},
	{regexp.MustCompile(`^git clone https://` + regexp.QuoteMeta(module) + `( \.\./reservoir)?$|^mkdir hello && cd hello$|^go mod (init|tidy)|^go build$`), func(*testing.T, *stage, string) {}},
	// TestGettingStarted runs it.
	{threeProcesses, func(*testing.T, *stage, string) {}},
	// These run until they are stopped.
	{regexp.MustCompile(`^redis-server `), func(*testing.T, *stage, string) {}},
	{regexp.MustCompile(`^redis-cli `), func(t *testing.T, s *stage, c string) { s.shell(t, s.dir, c) }},
	{regexp.MustCompile(`^go run \./(cmd/reservoir|examples/workers) `), func(t *testing.T, s *stage, c string) { s.run(t, c) }},
}

// command runs the check of a command.
func (s *stage) command(t *testing.T, command string) {
	t.Helper()
	for _, c := range checks {
		if c.like.MatchString(command) {
			c.check(t, s, command)
			return
		}
	}
	t.Fatalf("%q: say in docscommands_test.go how it is tested", command)
}

var (
	goRun   = regexp.MustCompile(`go run (\./\S+)`)
	comment = regexp.MustCompile(`(^|\s+)#.*$`)
	inTime  = regexp.MustCompile(`^go run \./cmd/reservoir (load|tune .*-store ) ?`) // these run for their -duration, or 5 s for each policy
)

// commandLines returns the commands of a block, without comments.
func commandLines(text string) (all []string) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if line = strings.TrimSpace(comment.ReplaceAllString(strings.TrimSpace(line), "")); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// run runs a command line of our own program, for less time than the line says.
func (s *stage) run(t *testing.T, command string) {
	t.Helper()
	if inTime.MatchString(command) {
		command += " -duration 200ms"
	}
	s.shell(t, s.dir, command)
}

// shell runs a command and returns what it printed.
func (s *stage) shell(t *testing.T, dir, command string) string {
	t.Helper()
	host, port, _ := strings.Cut(s.server.Addr(), ":")
	here := goRun.ReplaceAllStringFunc(command, func(c string) string { return s.build(t, strings.TrimPrefix(c, "go run ")) })
	here = strings.ReplaceAll(here, "localhost:6379", s.server.Addr())
	here = strings.ReplaceAll(here, "redis-cli ", "redis-cli -h "+host+" -p "+port+" ")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", here)
	cmd.Dir = dir
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s%s", command, out, errors.String())
	return string(out)
}

// transcript runs the commands after "$ " and compares their output with the text that
// follows, apart from the size of numbers.
func (s *stage) transcript(t *testing.T, text string) {
	for _, part := range strings.Split("\n"+text, "\n$ ")[1:] {
		command, said, _ := strings.Cut(strings.ReplaceAll(part, "\\\n", " "), "\n")
		printed := s.shell(t, ".", command)
		require.True(t, near(said, printed), "%s\nis said to print\n%s\nand prints\n%s", command, said, printed)
	}
}

var number = regexp.MustCompile(`[0-9][0-9,]*(\.[0-9]+)?`)

// near reports whether two texts have the same words, and numbers within a quarter of
// each other, because a document may be a little out of date.
func near(said, printed string) bool {
	words := func(s string) string { return strings.Join(strings.Fields(number.ReplaceAllString(s, "0")), " ") }
	if words(said) != words(printed) {
		return false
	}
	was, is := number.FindAllString(said, -1), number.FindAllString(printed, -1)
	for i := range was {
		a, b := value(was[i]), value(is[i])
		if math.Abs(a-b) > 0.25*max(a, b)+0.5 {
			return false
		}
	}
	return true
}

// value parses a number as documents write it. A number that is too large is infinite.
func value(s string) float64 {
	v, _ := strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
	return v
}

func TestNear(t *testing.T) {
	for _, row := range []struct {
		said, printed string
		near          bool
	}{
		{"calls 1,000", "calls  1,100\n", true},
		{"calls 1,000", "calls 2,000", false},
		{"calls 1,000", "call 1,000", false},
		{"0.4 %", "0.8 %", true},
		{"0.4 %", "40 %", false},
		{"one two", "one", false},
		{"1, 2", "1, 2", true},
	} {
		require.Equal(t, row.near, near(row.said, row.printed), row)
	}
}

// requireTarget checks a target and its variables by a dry run of make.
func requireTarget(t *testing.T, command string) {
	t.Helper()
	out, err := exec.Command("make", append([]string{"-n"}, strings.Fields(command)[1:]...)...).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

var (
	selects   = regexp.MustCompile(`-(?:run|bench)[= ]'?([^' ]+)'?`)
	inPackage = regexp.MustCompile(`(?:^| )(\.\S*)`)
)

// requireTests finds the tests that a command of go test in a document selects. A
// package's own document runs it in dir, and any other, such as the guides in docs, at
// the root.
func requireTests(t *testing.T, dir, command string) {
	t.Helper()
	if dir == "docs" || len(functions(t, dir, ".")) == 0 {
		dir = "."
	}
	in := dir
	if m := inPackage.FindStringSubmatch(command); m != nil {
		in = path.Join(dir, m[1])
	}
	for _, m := range selects.FindAllStringSubmatch(command, -1) {
		for _, name := range strings.Split(m[1], "|") {
			if name, _, _ = strings.Cut(name, "/"); name != "^$" { // subtests are not checked
				require.NotEmpty(t, functions(t, in, name), command)
			}
		}
	}
}
