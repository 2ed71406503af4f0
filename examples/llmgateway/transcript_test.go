package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/program"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// varies matches what differs from run to run.
var varies = regexp.MustCompile(`(?m)(Date: |Reset: |;t=|Retry-After: )[^;\n]+`)

// The transcript in README.md is what the commands print.
func TestTranscript(t *testing.T) {
	p := start(t)
	defer p.stop(t)
	program.RequireTranscript(t, p.url, varies)
}

// The program accepts the command lines in README.md.
func TestReadmeFlags(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	starts := regexp.MustCompile(`(?m)^go run ./examples/llmgateway ([^#\n]*)#`).FindAllSubmatch(readme, -1)
	require.Len(t, starts, 3)
	server := redistest.Start(t)
	for _, args := range starts {
		start(t, strings.Fields(strings.ReplaceAll(string(args[1]), "localhost:6379", server.Addr()))...).stop(t)
	}
}

func TestFaultsOfTheCommandLine(t *testing.T) {
	for _, args := range [][]string{{"-redis", "nonsense"}, {"-addr", "nonsense"}, {"-tokens", "0"}, {"-model", "nonsense"}, {"-model", "http://%zz"}, {"-reserve", "-1"}, {"-window", "-1s"}, {"-no"}} {
		require.Error(t, run(t.Context(), args, io.Discard), args)
	}
	err := run(t.Context(), []string{"-redis", "redis://me:s3cret@localhost:port"}, io.Discard)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cret")
}

// A model server's URL may end in a slash, as in a browser.
func TestModelWithASlash(t *testing.T) {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) }))
	t.Cleanup(model.Close)
	p := start(t, "-model", model.URL+"/")
	_, text := ask(t, p.url+path, completion(1))
	require.Equal(t, path, text)
	p.stop(t)
}
