package httplimit_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/httplimit"
)

// limited serves f behind a limit of 10 on a real connection.
func limited(t *testing.T, l *reservoir.Limiter, f http.HandlerFunc, opts ...httplimit.Option) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(httplimit.New(l, append([]httplimit.Option{byTenant}, opts...)...)(f))
	s.EnableHTTP2 = true
	t.Cleanup(s.Close)
	return s
}

// ask sends a request and reads the whole response.
func ask(t *testing.T, s *httptest.Server, ctx context.Context) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	require.NoError(t, err)
	r.Header.Set("X-Tenant", "acme")
	resp, err := s.Client().Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

func TestRefund(t *testing.T) {
	for mode, opts := range modes {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := open(t, reservoir.PerHour(10), opts...)
				status := http.StatusOK
				h := httplimit.New(l, byTenant, httplimit.WithCost(func(*http.Request) int64 { return 2 }))(
					http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
				for _, step := range []struct {
					status    int
					remaining string
				}{{200, "8"}, {304, "8"}, {304, "8"}, {404, "6"}, {304, "6"}, {200, "4"}} {
					status = step.status
					resp := get(h, "X-Tenant", "acme")
					require.Equal(t, step.status, resp.StatusCode)
					require.Equal(t, step.remaining, resp.Header.Get("X-RateLimit-Remaining"))
					require.Regexp(t, `^"default";r=`+step.remaining+";", resp.Header.Get("RateLimit"))
				}
				require.EqualValues(t, 6, spent(l))
				synctest.Wait() // a batch on its way may count twice, or not at all
				r, err := l.Check(t.Context(), "header:X-Tenant:acme")
				require.NoError(t, err)
				require.EqualValues(t, 4, r.Remaining, "as store and stock have it")
				s := l.Stats()
				require.Equal(t, s.Taken+s.Refunded, s.Spent+s.Returned+s.Expired+s.Held)
			})
		})
	}
}

// A handler may earn the refund by any sign, and by any way to send a response.
func TestRefundRule(t *testing.T) {
	refund := httplimit.WithRefund(func(r *http.Request, status int, h http.Header) bool {
		return r.Method == http.MethodGet && status == 200 && h.Get("X-Cache") == "hit"
	})
	ways := map[string]func(http.ResponseWriter){
		"nothing":     func(http.ResponseWriter) {},
		"WriteHeader": func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) },
		"Write":       func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")) },
		"ReadFrom":    func(w http.ResponseWriter) { _, _ = io.Copy(w, plain{strings.NewReader("x")}) },
		"Flush":       func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"FlushError":  func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
	}
	for name, way := range ways {
		l := open(t, reservoir.PerHour(10))
		s := limited(t, l, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Cache", "hit")
			way(w)
			w.Header().Set("X-Cache", "too late")
		}, refund)
		s.Start()
		resp, _ := ask(t, s, t.Context())
		if name == "nothing" { // then the headers are those at the handler's end
			assert.Equal(t, "9", resp.Header.Get("X-RateLimit-Remaining"))
			continue
		}
		assert.Equal(t, "10", resp.Header.Get("X-RateLimit-Remaining"), name)
		s.Close() // waits for the handler's end
		assert.Zero(t, spent(l), name)
	}
	for _, never := range []httplimit.RefundFunc{nil, httplimit.Status()} {
		l := open(t, reservoir.PerHour(10))
		get(httplimit.New(l, byTenant, httplimit.WithRefund(never))(answers(http.StatusNotModified)), "X-Tenant", "acme")
		assert.EqualValues(t, 1, spent(l))
	}
}

// plain hides the other ways of a reader, so that io.Copy asks the writer for one.
type plain struct{ io.Reader }

// As long as nothing was copied, another status may follow on the server's own
// writer, too; what comes before a source fails is sent.
func TestReadFromAServersWriter(t *testing.T) {
	whole := strings.Repeat("body", 1000)
	for _, test := range []struct {
		src    io.Reader
		status int
		body   string
		spent  int64
	}{
		{iotest.ErrReader(io.ErrUnexpectedEOF), http.StatusBadGateway, "", 0},
		{plain{strings.NewReader("")}, http.StatusBadGateway, "", 0},
		{plain{strings.NewReader(whole)}, http.StatusOK, whole, 1},
		{plain{iotest.OneByteReader(strings.NewReader(whole))}, http.StatusOK, whole, 1},
		{io.MultiReader(plain{strings.NewReader("some")}, iotest.ErrReader(io.ErrUnexpectedEOF)), http.StatusOK, "some", 1},
	} {
		l := open(t, reservoir.PerHour(10))
		s := limited(t, l, func(w http.ResponseWriter, _ *http.Request) {
			n, _ := io.Copy(w, test.src)
			assert.EqualValues(t, len(test.body), n)
			if n == 0 {
				w.WriteHeader(http.StatusBadGateway)
			}
		}, httplimit.WithRefund(httplimit.Status(http.StatusBadGateway)))
		s.Start()
		resp, body := ask(t, s, t.Context())
		s.Close()
		assert.Equal(t, test.status, resp.StatusCode)
		assert.Equal(t, test.body, body)
		assert.Equal(t, test.spent, spent(l))
	}
}

// The tokens go back though the client has left.
func TestRefundToWhoHasLeft(t *testing.T) {
	l, err := reservoir.New(memstore.New(), reservoir.PerHour(10), reservoir.WithDirect())
	require.NoError(t, err)
	defer l.Close(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	h := httplimit.New(l, byTenant)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		w.WriteHeader(http.StatusNotModified)
	}))
	h.ServeHTTP(httptest.NewRecorder(), request("", "X-Tenant", "acme").WithContext(ctx))
	assert.Zero(t, spent(l))
}

// A handler that panics is charged, unless the client was told otherwise before.
func TestPanicIsCharged(t *testing.T) {
	for status, cost := range map[int]int64{http.StatusOK: 1, http.StatusNotModified: 0, 0: 1} {
		l := open(t, reservoir.PerHour(10))
		h := httplimit.New(l, byTenant)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if status != 0 {
				w.WriteHeader(status)
			}
			panic(http.ErrAbortHandler)
		}))
		assert.Panics(t, func() { get(h, "X-Tenant", "acme") })
		assert.Equal(t, cost, spent(l), "status %d", status)
	}
}

// What is flushed arrives before the handler ends, over HTTP/1 and HTTP/2.
func TestFlush(t *testing.T) {
	for _, start := range []func(*httptest.Server){(*httptest.Server).Start, (*httptest.Server).StartTLS} {
		arrived, flushed := make(chan struct{}), make(chan struct{})
		s := limited(t, open(t, reservoir.PerHour(10)), func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "one\n")
			w.(http.Flusher).Flush()
			close(flushed)
			<-arrived
		})
		start(s)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
		require.NoError(t, err)
		r.Header.Set("X-Tenant", "acme")
		resp, err := s.Client().Do(r)
		require.NoError(t, err)
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		close(arrived)
		require.NoError(t, err)
		assert.Equal(t, "one\n", line)
		<-flushed // over HTTP/2 a flush fails if its stream is closed before it returns
		require.NoError(t, resp.Body.Close())
	}
}

func TestHijack(t *testing.T) {
	l := open(t, reservoir.PerHour(10))
	limit := httplimit.New(l, byTenant, httplimit.WithRefund(httplimit.Status(http.StatusSwitchingProtocols)))
	h := limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if assert.NoError(t, err) {
			_, _ = io.WriteString(conn, "HTTP/1.1 418 I'm a teapot\r\nConnection: close\r\nContent-Length: 3\r\n\r\ntea")
			assert.NoError(t, conn.Close())
		}
	}))
	ended := make(chan struct{}) // a server does not wait for who took its connection
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	resp, body := ask(t, s, t.Context())
	assert.Equal(t, http.StatusTeapot, resp.StatusCode)
	assert.Equal(t, "tea", body)
	<-ended
	assert.Zero(t, spent(l), "it counts as 101")
}

// sendfile is a writer that notes the source that a body is copied from.
type sendfile struct {
	http.ResponseWriter
	from io.Reader
}

func (s *sendfile) ReadFrom(src io.Reader) (int64, error) {
	s.from = src
	return io.Copy(io.Discard, src)
}

// The server's own way to send files is used, when it is known that there is something to send.
func TestReadFromReachesTheServer(t *testing.T) {
	server := &sendfile{ResponseWriter: httptest.NewRecorder()}
	src := io.LimitReader(strings.NewReader(strings.Repeat("body", 1000)), 4000) // as http.ServeContent copies from
	httplimit.New(open(t, reservoir.PerHour(10)), byTenant)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n, err := io.Copy(w, src)
		assert.NoError(t, err)
		assert.EqualValues(t, 4000, n)
	})).ServeHTTP(server, request("", "X-Tenant", "acme"))
	assert.Same(t, src, server.from)

	short := &sendfile{ResponseWriter: httptest.NewRecorder()}
	httplimit.New(open(t, reservoir.PerHour(10)), byTenant)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.Copy(w, plain{strings.NewReader("")})
		assert.NoError(t, err)
	})).ServeHTTP(short, request("", "X-Tenant", "acme"))
	assert.Nil(t, short.from, "a source that has ended")
}

// The server behind a reverse proxy has limits of its own, and sends Early Hints. Its clients
// get our headers, and both limits in the fields that are lists.
func TestReverseProxy(t *testing.T) {
	for status, left := range map[int]string{http.StatusOK: "9", http.StatusNotModified: "10", http.StatusSwitchingProtocols: "9"} {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			if status == http.StatusSwitchingProtocols {
				w.Header().Set("Connection", "Upgrade")
				w.Header().Set("Upgrade", "echo")
			} else {
				w.Header().Set("X-RateLimit-Limit", "77")
			}
			w.Header().Set("RateLimit", "theirs")
			w.WriteHeader(status)
		}))
		defer upstream.Close()
		target, err := url.Parse(upstream.URL)
		require.NoError(t, err)
		inner, outer := open(t, reservoir.PerHour(10)), open(t, reservoir.PerHour(10))
		named := httplimit.WithPolicy(httplimit.Policy{Name: "front"})
		front := httptest.NewServer(httplimit.New(outer, byTenant)(httplimit.New(inner, byTenant, named)(httputil.NewSingleHostReverseProxy(target))))
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL, nil)
		require.NoError(t, err)
		r.Header = http.Header{"X-Tenant": {"acme"}, "Connection": {"Upgrade"}, "Upgrade": {"echo"}}
		resp, err := front.Client().Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		front.Close()
		assert.Equal(t, status, resp.StatusCode)
		for name, want := range map[string]string{"Limit": "10", "Remaining": left, "Resource": "front"} {
			assert.Equal(t, []string{want}, resp.Header.Values("X-RateLimit-"+name), name)
		}
		lists := strings.Join(resp.Header.Values("RateLimit"), " ")
		for _, field := range []string{`"default";r=` + left, `"front";r=` + left, "theirs"} {
			assert.Contains(t, lists, field)
		}
	}
}

type wrapper struct{ http.ResponseWriter }

func (w wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }
