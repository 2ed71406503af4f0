package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/httplimit"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// sung is the number of tokens that the model server reports for the input of completion.
var sung = tokensIn(len(`[{"role":"user","content":"sing"}]`))

// gated is a gateway in this process. Its limits are far away unless a test changes them.
type gated struct {
	*gateway
	url string
}

func gate(t *testing.T, model string, change func(limits *[3]int64, reserve *int64), opts ...reservoir.Option) gated {
	t.Helper()
	return gateOn(t, redistest.Start(t), model, change, opts...)
}

func gateOn(t *testing.T, server *redistest.Server, model string, change func(limits *[3]int64, reserve *int64), opts ...reservoir.Option) gated {
	t.Helper()
	limits, reserve := [3]int64{1_000_000, 1_000_000, 1_000_000_000}, int64(mostOutput)
	change(&limits, &reserve)
	store, err := redisstore.Open("redis://" + server.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	b, err := newBudget(store, [3]reservoir.Limit{reservoir.PerHour(limits[0]), reservoir.PerHour(limits[1]), reservoir.PerDay(limits[2], nil)}, append(opts, reservoir.WithFetchTimeout(5*time.Second))...)
	require.NoError(t, err)
	upstream, client, err := toModel(store, 1_000_000)
	require.NoError(t, err)
	g := &gateway{budget: b, reserve: reserve, model: model, client: client}
	mux := http.NewServeMux()
	mux.Handle("POST "+path, g)
	front := httptest.NewServer(mux)
	t.Cleanup(func() {
		front.Close() // after all settlements
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, b.close(context.Background()))
		require.NoError(t, upstream.Close(context.Background()))
	})
	return gated{g, front.URL}
}

// used returns what each limit counts as used, including debt.
func (g gated) used() (n [3]int64) {
	for i, l := range g.budget.limiters {
		s := l.Stats()
		n[i] = s.Spent - s.Refunded + s.Debt
	}
	return n
}

// cost is what a completion by the large model uses of each limit.
func cost(in, out int64) [3]int64 { return [3]int64{1, in + out, prices["large"].of(in, out)} }

// estimate is the gateway's of the input of a request.
func estimate(body string) int64 {
	q, _ := read(strings.NewReader(body))
	return tokensIn(len(q.body))
}

func within(*[3]int64, *int64) {}

// The gateway passes a stream through unchanged, and settles it by what the model server
// reports: less than was reserved, and more than was seen.
func TestStream(t *testing.T) {
	model := serveModel(t, standIn{words: 50, hidden: 7})
	for _, reserve := range []int64{5, mostOutput} {
		g := gate(t, model, func(_ *[3]int64, r *int64) { *r = reserve })
		for _, most := range []int{1, 20, 50, 51, 4096} {
			for _, asks := range []bool{false, true} {
				body, was := completion(most), g.used()
				if asks {
					body = strings.Replace(body, `"model"`, `"stream_options":{"include_usage":true},"model"`, 1)
				}
				resp, text := ask(t, g.url+path, body)
				require.Equal(t, http.StatusOK, resp.StatusCode)
				require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
				_, direct := ask(t, model+path, body)
				if !asks {
					require.NotContains(t, text, "usage", "a client that has not asked")
					direct = regexp.MustCompile(`data: .*"usage".*\n`).ReplaceAllString(direct, "")
				}
				require.Equal(t, direct, text)
				is, want := g.used(), cost(sung, int64(min(most, 50)+7))
				require.Equal(t, want, [3]int64{is[0] - was[0], is[1] - was[1], is[2] - was[2]})
			}
		}
	}
}

// A client that does not stream gets a chat completion of OpenAI's.
func TestWhole(t *testing.T) {
	g := gate(t, serveModel(t, standIn{words: 2}), func(_ *[3]int64, r *int64) { *r = 1 })
	resp, text := ask(t, g.url+path, strings.Replace(completion(100), "true", "false", 1))
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	require.JSONEq(t, fmt.Sprintf(`{"id":"c1","object":"chat.completion","created":1700000000,"model":"song",
		"choices":[{"index":0,"message":{"role":"assistant","content":"la la "},"finish_reason":"stop"}],
		"usage":{"prompt_tokens":%d,"completion_tokens":2,"total_tokens":%d}}`, sung, sung+2), text)
	require.Equal(t, cost(sung, 2), g.used())
}

// Some model servers report no use, which then is what we can count, and spread an answer
// over several lines.
func TestWholeWithoutUsage(t *testing.T) {
	const answer = "{\"choices\":\n[{\"message\":{\"content\":\"123456789012\"}}]}\n"
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
	t.Cleanup(model.Close)
	g := gate(t, model.URL, within)
	body := strings.Replace(completion(100), "true", "false", 1)
	_, text := ask(t, g.url+path, body)
	require.Equal(t, answer, text)
	require.Equal(t, cost(estimate(body), 3), g.used())
}

// A stream that the limit stops ends as if by max_completion_tokens. At most the refused
// chunk is above the limit.
func TestStoppedAtTheLimit(t *testing.T) {
	for limit, by := range []string{"tokens", "dollars"} {
		t.Run(by, func(t *testing.T) {
			g := gate(t, serveModel(t, standIn{words: 50}), func(limits *[3]int64, r *int64) {
				*r = 5
				limits[1+limit] = cost(estimate(completion(100)), 20)[1+limit]
			})
			resp, text := ask(t, g.url+path, completion(100))
			require.Equal(t, http.StatusOK, resp.StatusCode)
			words := strings.Count(text, "la ")
			require.GreaterOrEqual(t, words, 20)
			require.Less(t, words, 50)
			require.Regexp(t, `"content":"la "}}\]}\n\ndata: {"id":"c1","object":"chat.completion.chunk","created":1700000000,"model":"song","choices":\[{"index":0,"delta":{},"finish_reason":"length"}\]}\n\ndata: \[DONE\]\n\n$`, text)
			over := g.used()[1+limit] - cost(estimate(completion(100)), 20)[1+limit]
			require.LessOrEqual(t, over, cost(0, 1)[1+limit])
			for line := range strings.Lines(text) {
				if data, ok := strings.CutPrefix(line, "data: {"); ok {
					require.True(t, json.Valid([]byte("{"+data)), line)
				}
			}
		})
	}
}

// If a client leaves or a stream breaks, the gateway settles what it has counted.
func TestCutShort(t *testing.T) {
	const words = 30
	in := estimate(completion(50))
	for _, reserve := range []int64{10, 1000} {
		for i := range 4 {
			breaks, opts := i%2 == 0, []reservoir.Option{reservoir.WithDirect()}[i/2:]
			said, left := make(chan struct{}), make(chan struct{})
			model := serveModel(t, standIn{words: 50, before: func(i int64) {
				switch {
				case i == words && breaks:
					panic(http.ErrAbortHandler)
				case i == words:
					close(said)
					<-left
				}
			}})
			g := gate(t, model, func(_ *[3]int64, r *int64) { *r = reserve }, opts...)
			t.Cleanup(func() { close(left) }) // before the servers are closed
			ctx, leave := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, strings.NewReader(completion(50)))
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer sk-acme")
			resp, err := client(t).Do(r)
			require.NoError(t, err)
			lines, heard := bufio.NewScanner(resp.Body), 0
			for (breaks || heard < words) && lines.Scan() {
				heard += strings.Count(lines.Text(), "la ")
			}
			require.Equal(t, words, heard)
			if breaks {
				require.ErrorIs(t, lines.Err(), io.ErrUnexpectedEOF, "the client must see that this is not all")
			} else {
				<-said
			}
			leave()
			_ = resp.Body.Close()
			require.Eventually(t, func() bool { return g.used() == cost(in, words) }, 20*time.Second, time.Millisecond)
		}
	}
}

// A chunk of many letters may be one token, so guesses never count more than a completion
// may have.
func TestCounting(t *testing.T) {
	b, err := newBudget(memstore.New(), [3]reservoir.Limit{reservoir.PerHour(1), reservoir.PerHour(110), reservoir.PerDay(1_000_000, nil)})
	require.NoError(t, err)
	c, err := b.reserve(t.Context(), "acme", price{1, 1}, 10, 100)
	require.NoError(t, err)
	text := strings.Repeat("data:{\"choices\":[{\"delta\":{\"content\":\"a long word\"}}]}\r\n\r\n: still there\n\n", 100)
	w := httptest.NewRecorder()
	require.NoError(t, request{stream: true, most: 100}.copy(t.Context(), w, strings.NewReader(text), c))
	require.Equal(t, text, w.Body.String())
	require.EqualValues(t, 100, c.out)
	require.NoError(t, b.close(t.Context()))
}

// A refused client gets the numbers of the limit that refused, in headers and in words.
func TestRefused(t *testing.T) {
	for i, name := range []string{"requests", "tokens", "dollars"} {
		g := gate(t, serveModel(t, standIn{words: 10}), func(limits *[3]int64, _ *int64) { limits[i] = 2 * cost(estimate(completion(99)), 99)[i] })
		var last *http.Response
		var text string
		for n := range 1000 {
			if last, text = ask(t, g.url+path, completion(99)); last.StatusCode != http.StatusOK {
				require.GreaterOrEqual(t, n, 2)
				break
			}
			require.Equal(t, "requests", last.Header.Get("X-RateLimit-Resource"), "the first")
			require.Equal(t, []string{"requests", "tokens", "dollars"}, listed(last))
		}
		require.Equal(t, http.StatusTooManyRequests, last.StatusCode)
		require.Equal(t, name, last.Header.Get("X-RateLimit-Resource"))
		require.ElementsMatch(t, []string{"requests", "tokens", "dollars"}, listed(last))
		require.Equal(t, fmt.Sprint(2*cost(estimate(completion(99)), 99)[i]), last.Header.Get("X-RateLimit-Limit"))
		require.Regexp(t, `^[1-9]\d*$`, last.Header.Get("Retry-After"))
		var said struct {
			Error struct{ Type, Message string }
		}
		require.NoError(t, json.Unmarshal([]byte(text), &said))
		require.Equal(t, "rate_limit_error", said.Error.Type)
		require.Contains(t, said.Error.Message, name)
		before := g.used()
		_, _ = ask(t, g.url+path, completion(99))
		require.Equal(t, before, g.used(), "a refusal charges none of the limits")
	}
}

// listed returns the names of the limits in RateLimit, in order.
func listed(resp *http.Response) (names []string) {
	for _, item := range resp.Header.Values("RateLimit") {
		names = append(names, strings.Trim(strings.Split(item, ";")[0], `"`))
	}
	return names
}

// An invalid request gets a reply that says what is wrong, and is charged nothing.
func TestBadRequests(t *testing.T) {
	g := gate(t, serveModel(t, standIn{words: 10}), within)
	body := func(field string) string {
		return `{"model":"small","stream":true,"messages":[],` + field + `}`
	}
	for _, row := range []struct {
		body   string
		status int
		says   string
	}{
		{"", http.StatusBadRequest, "JSON"},
		{"sing!", http.StatusBadRequest, "JSON"},
		{"null", http.StatusBadRequest, "JSON"},
		{"[]", http.StatusBadRequest, "JSON"},
		{body(`"max_completion_tokens":-1`), http.StatusBadRequest, "max_completion_tokens"},
		{body(`"max_completion_tokens":0`), http.StatusBadRequest, "max_completion_tokens"},
		{body(`"max_tokens":"many"`), http.StatusBadRequest, "max_tokens"},
		{body(`"max_tokens":5,"max_completion_tokens":"many"`), http.StatusBadRequest, "max_completion_tokens"},
		{body(`"n":5`), http.StatusBadRequest, "n is"},
		{body(`"stream_options":5`), http.StatusBadRequest, "stream_options"},
		{body(`"model":"free"`), http.StatusBadRequest, "model"},
		{body(`"x":"` + strings.Repeat("la ", 1<<19) + `"`), http.StatusBadRequest, "large"},
	} {
		resp, text := ask(t, g.url+path, row.body)
		assert.Equal(t, row.status, resp.StatusCode, "%.80s", row.body)
		assert.Contains(t, text, row.says, "%.80s", row.body)
		assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	}
	for _, header := range [][]string{{"Authorization", ""}, {"Authorization", "Bearer sk-guess"}, {"Authorization", "Bearer "}} {
		resp, text := ask(t, g.url+path, completion(10), header...)
		assert.Equal(t, http.StatusUnauthorized, resp.StatusCode, header)
		assert.NotContains(t, text, "sk-")
	}
	assert.Equal(t, [3]int64{}, g.used())
}

// What a model server refuses counts as a request, and costs nothing else. The client gets
// its answer, and when to come back.
func TestModelRefuses(t *testing.T) {
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(busy.Close)
	for model, want := range map[string]int{busy.URL: http.StatusTooManyRequests, "http://127.0.0.1:1": http.StatusBadGateway} {
		g := gate(t, model, within)
		resp, _ := ask(t, g.url+path, completion(100))
		require.Equal(t, want, resp.StatusCode)
		require.Equal(t, want == http.StatusTooManyRequests, resp.Header.Get("Retry-After") == "7")
		require.Equal(t, [3]int64{1, 0, 0}, g.used())
	}
}

// refusing is a model server that refuses its first request, and notes when others come.
type refusing struct {
	mu   sync.Mutex
	came []time.Time
}

func (m *refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil { // as a network's transport
		trace.GetConn("")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.came = append(m.came, time.Now())
	w := httptest.NewRecorder()
	if len(m.came) == 1 {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	} else {
		standIn{words: 3, before: func(int64) {}}.ServeHTTP(w, r)
	}
	return w.Result(), nil
}

func (m *refusing) requests() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.came)
}

// If the model server says when to come back, no process sends before. A client that leaves meanwhile pays for no tokens.
func TestModelPausesAllProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, model, all := memstore.New(), &refusing{}, []*gateway{}
		for range 3 {
			b, err := newBudget(store, [3]reservoir.Limit{reservoir.PerHour(1000), reservoir.PerHour(100_000), reservoir.PerDay(1_000_000_000, nil)})
			require.NoError(t, err)
			l, client, err := toModel(store, 600)
			require.NoError(t, err)
			client.Transport.(*httplimit.Transport).Base = model
			all = append(all, &gateway{b, mostOutput, "http://model", client})
			defer func() {
				require.NoError(t, b.close(context.Background()))
				require.NoError(t, l.Close(context.Background()))
			}()
		}
		ask := func(ctx context.Context, g *gateway) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(completion(9)))
			r.Header.Set("Authorization", "Bearer sk-acme")
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			return w
		}
		begin := time.Now()
		first := ask(t.Context(), all[0])
		require.Equal(t, http.StatusTooManyRequests, first.Code)
		require.Equal(t, "30", first.Header().Get("Retry-After"))
		synctest.Wait()
		var asking sync.WaitGroup
		for i, g := range all {
			asking.Go(func() {
				assert.Equal(t, http.StatusOK, ask(t.Context(), g).Code)
				at := time.Since(begin)
				assert.InDelta(t, 30*time.Second, at, float64(100*time.Millisecond), "process %d", i)
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		require.NotEqual(t, http.StatusOK, ask(ctx, all[1]).Code)
		require.Equal(t, 1, model.requests(), "it has not been sent")
		asking.Wait()
		require.Equal(t, 4, model.requests())
		require.Equal(t, [3]int64{2, 3 + sung, prices["large"].of(sung, 3)}, gated{all[1], ""}.used())
	})
}
