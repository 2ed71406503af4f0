package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// process is the program, run in this process.
type process struct {
	t      *testing.T
	url    string
	client *http.Client
	quit   func()       // as a signal does
	stop   func() error // also waits for the end; may be called again
	out    *bufio.Reader
}

// start runs the program with flags, on a port of its own.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, append([]string{"-addr", "127.0.0.1:0"}, args...), in)
		_ = in.Close()
		ended <- err
		close(ended)
	}()
	p := &process{t: t, client: &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}, quit: cancel, out: bufio.NewReader(out)}
	p.stop = func() error {
		cancel()
		_, _ = io.Copy(io.Discard, p.out)
		p.client.CloseIdleConnections()
		return <-ended
	}
	t.Cleanup(func() { require.NoError(t, p.stop()) })
	line, err := p.out.ReadString('\n')
	require.NoError(t, err)
	p.url = strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	return p
}

// do sends a request, with the headers given in pairs, and reads the response.
func (p *process) do(method, path string, body io.Reader, headers ...string) (*http.Response, string) {
	p.t.Helper()
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, body)
	require.NoError(p.t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := p.client.Do(r)
	require.NoError(p.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	return resp, string(text)
}

func (p *process) get(path string, headers ...string) *http.Response {
	p.t.Helper()
	resp, _ := p.do(http.MethodGet, path, nil, headers...)
	return resp
}

// resource is a client's state.
type resource struct{ Limit, Used, Remaining, Reset int64 }

// core requests /rate_limit.
func (p *process) core(headers ...string) (r resource) {
	p.t.Helper()
	resp, body := p.do(http.MethodGet, "/rate_limit", nil, headers...)
	require.Equal(p.t, http.StatusOK, resp.StatusCode)
	require.NoError(p.t, json.Unmarshal([]byte(body), &r))
	require.Equal(p.t, r.Limit, r.Used+r.Remaining)
	return r
}

// numbers reads the rate limit headers of a response.
func (p *process) numbers(resp *http.Response) resource {
	p.t.Helper()
	number := func(name string) int64 {
		n, err := strconv.ParseInt(resp.Header.Get(name), 10, 64)
		require.NoError(p.t, err, name)
		return n
	}
	r := resource{number("X-RateLimit-Limit"), number("X-RateLimit-Used"), number("X-RateLimit-Remaining"), number("X-RateLimit-Reset")}
	require.Equal(p.t, r.Limit, r.Used+r.Remaining)
	require.Equal(p.t, `"core";q=`+resp.Header.Get("X-RateLimit-Limit")+";w=3600", resp.Header.Get("RateLimit-Policy"))
	return r
}

var octocat = []string{"Authorization", "Bearer s3cret"}

func TestNotModifiedIsFree(t *testing.T) {
	p := start(t)
	resp := p.get("/users/octocat") // without a token: 60 an hour
	etag := resp.Header.Get("ETag")
	for range 100 {
		resp = p.get("/users/octocat", "If-None-Match", etag)
		require.Equal(t, http.StatusNotModified, resp.StatusCode)
		require.LessOrEqual(t, p.numbers(resp).Remaining, int64(59))
	}
	require.EqualValues(t, 1, p.core().Used)
}

func TestNobodyHasSixty(t *testing.T) {
	p := start(t)
	untouched := p.core()
	require.EqualValues(t, 60, untouched.Remaining)
	for i := range 60 {
		resp := p.get("/users/octocat", "X-Forwarded-For", "192.0.2."+strconv.Itoa(i)) // which the server does not trust
		require.Equal(t, http.StatusOK, resp.StatusCode, i)
	}
	resp, body := p.do(http.MethodGet, "/users/octocat", nil, "X-Forwarded-For", "192.0.2.99")
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	require.Zero(t, p.numbers(resp).Remaining)
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	require.True(t, json.Valid([]byte(body)))
	for range 10 {
		require.Equal(t, p.numbers(resp).Used, p.core().Used, "asking is free")
	}
	resp = p.get("/users/octocat", octocat...)
	require.Equal(t, http.StatusOK, resp.StatusCode, "a user has a limit of its own")
}

// Requests with guessed tokens are charged to their address.
func TestBadToken(t *testing.T) {
	p := start(t)
	for i := range 61 {
		want := http.StatusUnauthorized
		if i == 60 {
			want = http.StatusTooManyRequests
		}
		require.Equal(t, want, p.get("/users/octocat", "Authorization", "Bearer guess-"+strconv.Itoa(i)).StatusCode)
	}
}

// At the end, a request in flight gets its response, and unused tokens go back to Redis.
func TestGracefulShutdown(t *testing.T) {
	server := redistest.Start(t)
	url := "redis://" + server.Addr()
	one, two := start(t, "-redis", url), start(t, "-redis", url)
	for range 50 {
		for _, p := range []*process{one, two} {
			require.Equal(t, http.StatusOK, p.get("/users/octocat", octocat...).StatusCode)
		}
	}
	body, text := io.Pipe()
	answered := make(chan string)
	go func() {
		_, html := one.do(http.MethodPost, "/markdown", body, append(octocat, "Expect", "100-continue")...)
		answered <- html
	}()
	_, err := text.Write([]byte("hello ")) // the client reads it when the handler wants it
	require.NoError(t, err)
	require.NoError(t, two.stop())
	one.quit()
	line, err := one.out.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "stopping\n", line)
	_, err = text.Write([]byte("world"))
	require.NoError(t, err)
	require.NoError(t, text.Close())
	assert.Equal(t, "<p>hello world</p>\n", <-answered)
	require.NoError(t, one.stop())
	charged, err := server.Client().Get(t.Context(), "apiserver:{user:octocat}:3600s").Int64()
	require.NoError(t, err)
	assert.EqualValues(t, 101, charged, "just the requests that were served")

	three := start(t, "-redis", url)
	require.Equal(t, http.StatusOK, three.get("/users/octocat", octocat...).StatusCode)
	server.Kill()
	require.NoError(t, three.stop(), "an outage is no fault of this process")
}

// The program accepts the command lines in README.md.
func TestReadmeFlags(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	starts := regexp.MustCompile(`(?m)^go run ./examples/apiserver ([^#\n]*)#`).FindAllSubmatch(readme, -1)
	require.Len(t, starts, 3)
	server := redistest.Start(t)
	for _, args := range starts {
		start(t, strings.Fields(strings.ReplaceAll(string(args[1]), "localhost:6379", server.Addr()))...)
	}
}

func TestFaultsOfTheCommandLine(t *testing.T) {
	for _, args := range [][]string{{"-trust", "nonsense"}, {"-redis", "nonsense"}, {"-addr", "nonsense"}, {"-no"}} {
		require.Error(t, run(t.Context(), args, io.Discard), args)
	}
}
