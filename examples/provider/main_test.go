package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// network brings requests to the provider, and sees what is sent although a process has been told to pause.
type network struct {
	api *provider

	mu           sync.Mutex
	since, until time.Time // of the pause
	pauses       int
	early        int
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	if now := time.Now(); now.After(n.since) && now.Before(n.until) {
		n.early++
	}
	n.mu.Unlock()
	travel := func() { time.Sleep(time.Duration(5+rand.IntN(30)) * time.Millisecond) }
	travel()
	w := httptest.NewRecorder()
	n.api.ServeHTTP(w, r)
	travel()
	if w.Code == http.StatusTooManyRequests {
		pause, err := time.ParseDuration(w.Header().Get("X-RateLimit-Reset-Tokens"))
		n.mu.Lock()
		defer n.mu.Unlock()
		if now := time.Now(); err == nil && !now.Before(n.until) {
			n.since, n.until = now, now.Add(pause)
			n.pauses++
		}
	}
	return w.Result(), nil
}

// What the provider grants is used, whatever its limits are, and one refusal stops all three processes: only what was on its way is refused
// with it.
func TestProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &provider{requests: requests, tokens: tokens, minute: time.Minute}
		n := &network{api: api}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var all []*process
		store := memstore.New()
		for range processes {
			p, err := join(store, time.Minute, n)
			require.NoError(t, err)
			defer func() { require.NoError(t, p.close()) }()
			all = append(all, p)
		}
		time.AfterFunc(3*time.Minute+time.Duration(rand.Int64N(int64(2*time.Minute))), api.halve)
		require.NoError(t, work(ctx, all, "http://provider"))

		minutes := api.all()
		require.GreaterOrEqual(t, len(minutes), 9)
		for i, m := range minutes[1 : len(minutes)-1] {
			used := max(float64(m.requests)/float64(m.most.requests), float64(m.tokens)/float64(m.most.tokens))
			t.Logf("minute %d: used %.2f %%, refused %d", i+2, 100*used, m.refused)
			require.GreaterOrEqual(t, used, 0.99)
			require.LessOrEqual(t, m.refused, int64(workers), "at most what is in flight")
		}
		require.EqualValues(t, requests/2, minutes[8].most.requests)
		require.Zero(t, n.early, "sent during a pause")
		require.Positive(t, n.pauses)
		t.Logf("%d pauses", n.pauses)
	})
}

// The program does what README.md says.
func TestProgram(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	starts := regexp.MustCompile(`(?m)^go run ./examples/provider ?(.*)$`).FindAllSubmatch(readme, -1)
	require.Len(t, starts, 2)
	server := redistest.Start(t)
	for _, line := range starts {
		var out strings.Builder
		args := strings.Fields(strings.ReplaceAll(string(line[1]), "localhost:6379", server.Addr()))
		require.NoError(t, run(t.Context(), append(args, "-minute", "500ms"), &out))
		require.Contains(t, out.String(), "allowed 1200 and 120000\n")
		require.Contains(t, out.String(), "allowed 600 and 60000\n")
	}
	require.Positive(t, server.Calls("evalsha", "fcall"))
	require.Error(t, run(t.Context(), []string{"-redis", "nonsense"}, io.Discard))
	require.Error(t, run(t.Context(), []string{"-no"}, io.Discard))
}
