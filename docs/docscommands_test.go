package docs_test

import (
	"fmt"
	"math"
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
	files(t, ".go") // go build reads these: see goList
	return &stage{dir: t.TempDir(), server: redistest.Start(t)}
}

// build returns the path of the program of a directory.
func (s *stage) build(t *testing.T, dir string) string {
	t.Helper()
	once, _ := s.built.LoadOrStore(dir, sync.OnceValues(func() (string, error) {
		to := filepath.Join(s.dir, path.Base(dir)+"-program")
		return to, goBuild(to, dir)
	}))
	program, err := once.(func() (string, error))()
	require.NoError(t, err)
	return program
}

// goBuild builds without the race detector, because some commands simulate a fleet.
func goBuild(to, from string) error {
	out, err := exec.Command("go", "build", "-o", to, from).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build %s: %w\n%s", from, err, out)
	}
	return nil
}

var threeProcesses = regexp.MustCompile(`^for i in 1 2 3; do \./hello & done; wait$`)

// notRun matches commands that take minutes, install software, download something, change the
// work tree, run until they are stopped, or are run by TestGettingStarted and TestGettingStartedServer.
var notRun = regexp.MustCompile(`^go (test|get|install|build$|mod (init|edit|tidy))|^go run golang\.org/x/perf/cmd/benchstat@latest |^git (stash|clone)|^mkdir |^redis-server |^\.ci/run$|^for p in 8081 |^curl .* localhost:8081$|^kill %|` + threeProcesses.String())

// command runs a command, or the part of it that can be run here.
func (s *stage) command(t *testing.T, command string) {
	t.Helper()
	switch {
	case strings.HasPrefix(command, "make"): // the target and its variables, without the recipe
		out, err := exec.Command("make", append([]string{"-n"}, strings.Fields(command)[1:]...)...).CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
	case notRun.MatchString(command):
	case inTime.MatchString(command):
		s.shell(t, s.dir, command+" -duration 200ms")
	default:
		s.shell(t, s.dir, command)
	}
}

var (
	goRun   = regexp.MustCompile(`go run (\./\S+)`)
	comment = regexp.MustCompile(`(^|\s+)#.*$`)
	inTime  = regexp.MustCompile(`^go run \./cmd/reservoir load`) // runs for its -duration
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
// follows: to the digit if a seed makes the command print the same each time, otherwise
// apart from the size of numbers.
func (s *stage) transcript(t *testing.T, text string) {
	for _, part := range strings.Split("\n"+text, "\n$ ")[1:] {
		command, said, _ := strings.Cut(strings.ReplaceAll(part, "\\\n", " "), "\n")
		printed := s.shell(t, ".", command)
		if seeded(command) {
			require.Equal(t, withoutTrailing(said), withoutTrailing(printed), "go test ./docs -run=TestTranscripts -update writes it anew")
			continue
		}
		require.True(t, near(said, printed), "%s\nis said to print\n%s\nand prints\n%s", command, said, printed)
	}
}

// seeded reports whether a command prints the same each time: it simulates, from a seed.
func seeded(command string) bool { return strings.Contains(command, "-seed ") }

// withoutTrailing is text without blanks at the ends of its lines.
func withoutTrailing(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n") + "\n"
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
