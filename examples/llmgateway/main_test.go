package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

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

// The program accepts the command lines in README.md, serves a completion by its built-in
// model, and stops when its context ends.
func TestProgram(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	starts := regexp.MustCompile(`(?m)^go run ./examples/llmgateway ?(.*)$`).FindAllSubmatch(readme, -1)
	require.Len(t, starts, 3)
	server := redistest.Start(t)
	for i, line := range starts {
		ctx, cancel := context.WithCancel(t.Context())
		out, in := io.Pipe()
		ended := make(chan error)
		args := strings.Fields(strings.ReplaceAll(string(line[1]), "localhost:6379", server.Addr()))
		go func() { ended <- run(ctx, append(args, "-addr", "127.0.0.1:0"), in) }()
		first, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		if i < 2 {
			_, text := ask(t, strings.TrimSpace(strings.TrimPrefix(first, "listening on "))+path, completion(3))
			require.Equal(t, 3, strings.Count(text, `"la "`))
		}
		client(t).CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
		cancel()
		require.NoError(t, <-ended)
	}
	charged, err := server.Client().Get(t.Context(), "llm:{tokens%1Facme}:60s").Int64()
	require.NoError(t, err)
	require.Equal(t, sung+3, charged, "what was not used has gone back")
}

func TestFaultsOfTheCommandLine(t *testing.T) {
	for _, args := range [][]string{{"-redis", "nonsense"}, {"-addr", "nonsense"}, {"-model", "nonsense"}, {"-model", "http://%zz"}, {"-reserve", "-1"}, {"-no"}} {
		require.Error(t, run(t.Context(), args, io.Discard), args)
	}
}
