package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/program"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// serveModel runs a model server.
func serveModel(t *testing.T, m standIn) string {
	if m.before == nil {
		m.before = func(int64) {}
	}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	return server.URL
}

// ask posts a request of acme and returns the response with its body.
func ask(t *testing.T, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer sk-acme")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client(t).Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(text)
}

var clients sync.Map // one for each test

func client(t *testing.T) *http.Client {
	c, had := clients.LoadOrStore(t, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}})
	if !had {
		t.Cleanup(c.(*http.Client).CloseIdleConnections)
	}
	return c.(*http.Client)
}

// completion asks for at most this many tokens.
func completion(most int) string {
	return fmt.Sprintf(`{"model":"large","stream":true,"max_completion_tokens":%d,"messages":[{"role":"user","content":"sing"}]}`, most)
}

// process is the program in its own process.
type process struct {
	*exec.Cmd
	out      *bufio.Reader
	url, log string
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.CommandContext(t.Context(), program.Path(t), append([]string{"-addr", "127.0.0.1:0"}, args...)...)} // killed with the test
	p.Env = program.Environ()
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	p.Stderr = p.Stdout
	p.out = bufio.NewReader(out)
	require.NoError(t, p.Start())
	line, err := p.out.ReadString('\n')
	require.NoError(t, err)
	p.url = strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	return p
}

// figures are what a process reports about a limit at its end.
type figures struct{ used, overdrawn int64 }

// stop ends the process as a signal does.
func (p *process) stop(t *testing.T) map[string]figures {
	t.Helper()
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	rest, err := io.ReadAll(p.out)
	require.NoError(t, err)
	require.NoError(t, p.Wait())
	p.log = string(rest)
	all := map[string]figures{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+): (\d+) used, (\d+) overdrawn, \d+ store calls$`).FindAllStringSubmatch(p.log, -1) {
		number := func(s string) (n int64) { n, _ = strconv.ParseInt(s, 10, 64); return n }
		all[m[1]] = figures{number(m[2]), number(m[3])}
	}
	require.Len(t, all, 3, p.log)
	return all
}

// calls returns the calls of our scripts, as Redis counts them, without the greetings of
// connections.
func calls(server *redistest.Server) int64 { return server.Calls("evalsha", "eval", "fcall") }

// Four processes serve 200 concurrent streams of 50 chunks, far within the
// limits. All store calls count, including first contacts and those of Close.
func TestSteady(t *testing.T) {
	const streams, rounds, words = 200, 4, 50
	server, model := redistest.Start(t), serveModel(t, standIn{words: words})
	var all []*process
	for range 4 {
		all = append(all, start(t, "-redis", "redis://"+server.Addr(), "-model", model, "-window", "1h",
			"-requests", "1000000", "-tokens", "1000000000", "-dollars", "1000000000000"))
	}
	for range rounds {
		var wg sync.WaitGroup
		for i := range streams {
			wg.Go(func() {
				resp, text := ask(t, all[i%4].url+path, completion(1000))
				if resp.StatusCode != http.StatusOK || strings.Count(text, `la `) != words {
					t.Error(resp.Status, text)
				}
			})
		}
		wg.Wait()
	}
	var used [3]int64
	for _, p := range all {
		got := p.stop(t)
		for i, name := range []string{"requests", "tokens", "dollars"} {
			used[i] += got[name].used
			require.Zero(t, got[name].overdrawn)
		}
		require.NotContains(t, p.log, "sk-")
	}
	t.Logf("%d store calls for %d completions", calls(server), streams*rounds)
	const done = streams * rounds
	in := tokensIn(len(`[{"role":"user","content":"sing"}]`))
	require.Equal(t, [3]int64{done, done * (in + words), done * (3*in + 15*words)}, used)
	require.LessOrEqual(t, float64(calls(server)), 0.05*done)
	for i, name := range []string{"requests", "tokens"} { // a day may end at any time
		charged, err := server.Client().Get(t.Context(), "llm:{"+name+"%1Facme}").Int64()
		require.NoError(t, err)
		require.Equal(t, used[i], charged, "what was not used has gone back")
	}
	keys, err := server.Client().Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.NotContains(t, strings.Join(keys, " "), "sk-")
}
