// Package docs_test checks the documents of the repository and the requirements of the
// library.
package docs_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestMain runs the tests at the root of the repository, because documents name files,
// directories and commands from there.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	redistest.Main(m)
}

// The test runs every block of code in every document of the repository, or finds it in a
// test, or finds it named here with the test that runs it. A block of an unknown kind
// fails.

// elsewhere lists the blocks that a test beside the page reads and runs.
var elsewhere = []string{
	"SECURITY.md acl limiter", "SECURITY.md acl check", "SECURITY.md acl more",
	"examples/apiserver/README.md sh",
	"examples/llmgateway/README.md sh",
	"examples/provider/README.md sh",
	"README.md go",
}

// block is a piece of a document between fences.
type block struct {
	file string // with slashes, from the root
	line int
	lang string // the text after the first fence
	text string
}

var (
	fenced = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")
	fence  = regexp.MustCompile("(?m)^[ >\t]*(```|~~~)")
)

func TestDocuments(t *testing.T) {
	s := newStage(t)
	tested := testCode(t)
	for file, text := range documents(t) {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			all := blocks(file, text)
			require.Len(t, fence.FindAllString(text, -1), 2*len(all), "a fence that is indented, or not closed")
			for _, b := range all {
				t.Run(strconv.Itoa(b.line), func(t *testing.T) { account(t, b, s, tested) })
			}
		})
	}
}

func blocks(file, text string) (all []block) {
	for _, m := range fenced.FindAllStringSubmatchIndex(text, -1) {
		line := 1 + strings.Count(text[:m[0]], "\n")
		all = append(all, block{file, line, text[m[2]:m[3]], text[m[4]:m[5]]})
	}
	return all
}

func account(t *testing.T, b block, s *stage, tested map[string]string) {
	if slices.Contains(elsewhere, b.file+" "+b.lang) {
		return
	}
	switch b.lang {
	case "go":
		if strings.HasPrefix(b.text, "package ") {
			s.program(t, b.text)
		} else {
			requireTested(t, b.text, tested)
		}
	case "sh":
		for _, c := range commandLines(b.text) {
			s.command(t, c)
		}
	case "console":
		s.transcript(t, b.text)
	case "peers": // lines of measured results
		text := files(t, "peers.txt")["test/results/peers.txt"]
		for line := range strings.Lines(b.text) {
			require.Contains(t, text, line)
		}
	case "promql": // names of metrics in promlimit's documentation
		text, err := os.ReadFile("contrib/promlimit/promlimit.go")
		require.NoError(t, err)
		names := regexp.MustCompile(`reservoir_\w+`).FindAllString(b.text, -1)
		require.NotEmpty(t, names)
		for _, name := range names {
			require.Regexp(t, "\t"+name+`\b`, string(text))
		}
	case "mermaid": // a picture
	case "text": // a list of files, which exist
		for _, file := range regexp.MustCompile(`\b[a-z]+\.go\b`).FindAllString(b.text, -1) {
			require.FileExists(t, file)
		}
	default:
		t.Fatalf("a block of %q: say in docs_test.go how it is tested", b.lang)
	}
}

// program builds a whole program that counts in the stage's server.
func (s *stage) program(t *testing.T, text string) (executable string) {
	t.Helper()
	dir := t.TempDir()
	file, to := filepath.Join(dir, "main.go"), filepath.Join(dir, "hello")
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, "localhost:6379", s.server.Addr())), 0o600))
	require.NoError(t, goBuild(to, file))
	return to
}

// Three processes that run the code of README.md admit the limit together, to the token.
func TestReadme(t *testing.T) {
	code := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(documents(t)["README.md"])
	require.NotNil(t, code)
	s := newStage(t)
	program := s.program(t, fmt.Sprintf(aroundReadme, code[1]))
	var running errgroup.Group
	var admitted atomic.Int64
	for range 3 {
		running.Go(func() error {
			out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
			admitted.Add(n)
			return err
		})
	}
	require.NoError(t, running.Wait())
	require.Equal(t, int64(600), admitted.Load())
}

// aroundReadme makes a program of README.md's code: it asks 300 times, and prints how many
// requests were admitted.
const aroundReadme = `package main

import (
	"context"
	"fmt"
	"log"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

func main() {
	ctx := context.Background()
	%s
	admitted := 0
	for asked := 1; ; asked++ {
		if err != nil {
			log.Fatal(err)
		}
		if r.Allowed {
			admitted++
		}
		if asked == 300 {
			break
		}
		r, err = limiter.Allow(ctx, "user:42")
	}
	fmt.Println(admitted)
}
`

// Three processes of the first guide together admit the limit, with few calls.
func TestGettingStarted(t *testing.T) {
	const page = "docs/getting-started.md"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	s := newStage(t)
	var admitted, refused, failed, calls int
	for _, b := range blocks(page, string(text)) {
		if b.lang == "go" {
			s.dir = filepath.Dir(s.program(t, b.text))
		}
		for _, c := range commandLines(b.text) {
			if !threeProcesses.MatchString(c) {
				continue
			}
			for line := range strings.Lines(s.shell(t, s.dir, c)) {
				var a, r, f, n int
				_, err := fmt.Sscanf(line, "admitted %d refused %d failed %d Redis calls %d", &a, &r, &f, &n)
				require.NoError(t, err, line)
				admitted, refused, failed, calls = admitted+a, refused+r, failed+f, calls+n
			}
		}
	}
	t.Logf("admitted %d, refused %d, failed %d, calls %d", admitted, refused, failed, calls)
	require.Equal(t, 3000, admitted+refused+failed)
	require.LessOrEqual(t, admitted, 2000)
	require.Greater(t, admitted, 1800) // each may hold a little when another is refused
	require.Less(t, calls, 200)
}

// Three servers of the first guide share each user's limit. SIGTERM ends them in order, which
// returns what they hold.
func TestGettingStartedServer(t *testing.T) {
	const page = "docs/getting-started.md"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	all := blocks(page, string(text))
	i := slices.IndexFunc(all, func(b block) bool { return strings.Contains(b.text, "http.Server") })
	require.GreaterOrEqual(t, i, 0)
	s := newStage(t)
	program := s.program(t, all[i].text)
	commands, addrs := all[i+1].text, []string{}
	for _, port := range []string{"8081", "8082", "8083"} {
		free, err := net.Listen("tcp", "localhost:0")
		require.NoError(t, err)
		_, other, _ := net.SplitHostPort(free.Addr().String())
		addrs, commands = append(addrs, "localhost:"+other), strings.ReplaceAll(commands, port, other)
		require.NoError(t, free.Close())
	}
	lines := commandLines(commands)
	require.Len(t, lines, 4, "build, start, curl, kill")
	start := strings.TrimSuffix(lines[1], "; sleep 1") // the test waits for the servers
	shell := exec.CommandContext(t.Context(), "bash", "-c", start+"; read; "+lines[2]+"; "+lines[3]+"; wait")
	shell.Dir = filepath.Dir(program)
	input, err := shell.StdinPipe()
	require.NoError(t, err)
	var said bytes.Buffer
	shell.Stdout, shell.Stderr = &said, &said
	require.NoError(t, shell.Start())

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(addr, user string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr, nil)
		require.NoError(t, err)
		r.Header.Set("X-User", user)
		answer, err := client.Do(r)
		if err != nil {
			return nil // it does not listen yet
		}
		require.NoError(t, answer.Body.Close())
		return answer
	}
	for _, addr := range addrs {
		require.Eventually(t, func() bool { return ask(addr, "") != nil }, time.Minute, 10*time.Millisecond)
		require.Equal(t, http.StatusBadRequest, ask(addr, "").StatusCode)
	}
	charged := func(user string) string {
		return strings.TrimSpace(s.shell(t, ".", "redis-cli get '{user:"+user+"}:60s'"))
	}
	spent := 0
	for strconv.Itoa(spent) == charged("alice") || spent < len(addrs) { // until they hold some
		answer := ask(addrs[spent%len(addrs)], "alice")
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.Equal(t, "600", answer.Header.Get("X-RateLimit-Limit"))
		spent++
	}

	_, err = io.WriteString(input, "\n") // curl, then kill
	require.NoError(t, err)
	require.NoError(t, shell.Wait(), &said)
	require.Contains(t, said.String(), "HTTP/1.1 200 OK")
	require.Equal(t, strconv.Itoa(spent), charged("alice"), "what they did not use they have returned")
	require.Equal(t, "1", charged("42"))
}

var (
	figure     = regexp.MustCompile(`(?:([\d.]+)–)?([\d.]+) (%|×|M|k|ns|µs|ms|s|B)(?:[^\pL]|$)`)
	measuredBy = regexp.MustCompile("(?m)^\\||`make (bench|fleet)`")
)

// Measured figures in sentences, and in tables without a source, are in test/results, to the digit.
func TestFiguresWereMeasured(t *testing.T) {
	var results string
	for file, text := range files(t, ".txt") {
		if strings.HasPrefix(file, "test/results/") {
			results += text
		}
	}
	require.NotEmpty(t, results)
	all := documents(t)
	for _, file := range []string{"README.md", "docs/performance.md"} {
		for _, part := range strings.Split(sourced.ReplaceAllString(fenced.ReplaceAllString(all[file], ""), ""), "\n\n") {
			if !measuredBy.MatchString(part) {
				continue
			}
			for _, m := range figure.FindAllStringSubmatch(part, -1) {
				for _, value := range m[1:3] {
					said := value + " " + m[3]
					require.True(t, value == "" || regexp.MustCompile(`(^|[^\d.])`+regexp.QuoteMeta(said)).MatchString(results), "%s: nothing measured %s", file, said)
				}
			}
		}
	}
}

// requireTested finds a fragment in the code of tests, which compiles and runs. At an
// ellipsis in the fragment the test may have more lines.
func requireTested(t *testing.T, fragment string, tested map[string]string) {
	parts := strings.Split(plainCode(fragment), "\n...\n")
	for _, text := range tested {
		if inOrder(text, parts) {
			return
		}
	}
	t.Fatalf("no test has this code:\n%s", fragment)
}

func inOrder(text string, parts []string) bool {
	for _, p := range parts {
		i := strings.Index(text, "\n"+strings.TrimSpace(p)+"\n")
		if i < 0 {
			return false
		}
		text = text[i+len(p):]
	}
	return true
}

// testCode is the text of all tests, by file.
func testCode(t *testing.T) map[string]string {
	all := map[string]string{}
	for file, text := range files(t, "_test.go") {
		all[file] = "\n" + plainCode(text)
	}
	return all
}

// plainCode is code without indentation.
func plainCode(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

// files returns the paths, from the root, of the files whose names end so.
func files(t *testing.T, suffix string) map[string]string {
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == ".git" { // a directory, or a file in a work tree
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(name, suffix) {
			return err
		}
		text, err := os.ReadFile(name)
		all[filepath.ToSlash(name)] = string(text)
		return err
	}))
	require.NotEmpty(t, all)
	return all
}

// documents returns all pages. Blanks that keep a figure and its unit on a line are as others.
func documents(t *testing.T) map[string]string {
	all := files(t, ".md")
	for file, text := range all {
		all[file] = strings.ReplaceAll(text, "\u00a0", " ")
	}
	return all
}

// All pages together are short enough to read, so what is said once is a link elsewhere.
func TestDocumentsAreShort(t *testing.T) {
	words := 0
	for file, text := range documents(t) {
		if file != "CHANGELOG.md" && !strings.HasPrefix(file, ".") {
			words += len(strings.Fields(text))
		}
	}
	require.LessOrEqual(t, words, 17_000)
	readme := documents(t)["README.md"]
	require.LessOrEqual(t, len(strings.Fields(readme)), 800)
	require.LessOrEqual(t, strings.Count(readme, "\n"), 90)
}

// Code fits a page: 80 columns, with tabs of four. Access rules are one line each, by their form.
func TestCodeIsNarrow(t *testing.T) {
	for file, text := range documents(t) {
		if dir := path.Dir(file); dir == "." && file != "README.md" {
			continue
		}
		for _, b := range blocks(file, text) {
			for line := range strings.Lines(b.text) {
				wide := strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "    ")
				require.LessOrEqual(t, utf8.RuneCountInString(wide), 80, "%s:%d: %s", file, b.line, line)
			}
		}
	}
}

// A line that begins with a comment is HTML up to its end, so Markdown after it is shown as it stands.
func TestCommentsEndTheirLine(t *testing.T) {
	begins := regexp.MustCompile(`(?m)^ {0,3}<!--.*-->.*$`)
	for file, text := range documents(t) {
		for _, line := range begins.FindAllString(text, -1) {
			require.Empty(t, strings.TrimSpace(line[strings.LastIndex(line, "-->")+3:]), "%s: %s", file, line)
			require.Equal(t, 1, strings.Count(line, "<!--"), "%s: %s", file, line)
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// Links within the repository lead somewhere.
func TestDocumentsLink(t *testing.T) {
	all := documents(t)
	for file, text := range all {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // of another site
			}
			to := file
			if target != "" {
				to = path.Join(path.Dir(file), target)
			}
			_, err := os.Stat(to)
			require.NoError(t, err, "%s links to %s", file, m[1])
			if anchor != "" {
				require.True(t, slices.Contains(anchors(all[to]), anchor), "%s links to %s", file, m[1])
			}
		}
	}
}

// anchors returns the headings of a document in the form that links use.
func anchors(text string) (all []string) {
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return all
}
