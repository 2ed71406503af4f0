// Package frameworks runs the code of docs/frameworks.md: behind each framework a request
// that the limit refuses gets 429 and Retry-After, and reaches no handler.
package frameworks

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/httplimit"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1")) // never ends
}

// The limit of each test: two requests an hour for a user.
const tokens = 2

func limiterOf(t *testing.T) *reservoir.Limiter {
	limits := func(key string) reservoir.Limit {
		if key == "user:mallory" {
			return reservoir.Block()
		}
		return reservoir.PerHour(tokens)
	}
	limiter, err := reservoir.New(memstore.New(), reservoir.PerHour(tokens), reservoir.WithLimits(limits))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, limiter.Close(context.Background())) })
	return limiter
}

func limitOf(t *testing.T) func(http.Handler) http.Handler {
	limiter := limiterOf(t)

	user := func(r *http.Request) string { return r.Header.Get("X-User") }
	limit := httplimit.New(limiter,
		httplimit.WithKey(httplimit.ByUser(user)))

	return limit
}

// seen counts the requests that reach a handler.
type seen struct{ requests int }

func (s *seen) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.requests++
	w.WriteHeader(http.StatusOK)
}

// drive sends one request more than a user may, then one of another user and one of nobody. The
// paths are limited, and /health is not. It returns the last answers to the first user.
func drive(t *testing.T, s *seen, send func(*http.Request) *http.Response) (admitted, refused *http.Response) {
	t.Helper()
	ask := func(user, path string) *http.Response {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}"))
		r.Header.Set("X-User", user)
		r.Header.Set("Content-Type", "application/json")
		answer := send(r)
		require.NoError(t, answer.Body.Close())
		return answer
	}
	for range tokens {
		admitted = ask("alice", "/orders")
		require.Equal(t, http.StatusOK, admitted.StatusCode)
	}
	refused = ask("alice", "/orders")
	require.Equal(t, http.StatusTooManyRequests, refused.StatusCode)
	seconds, err := strconv.Atoi(refused.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.InDelta(t, time.Hour.Seconds(), seconds, 2)
	require.Equal(t, http.StatusOK, ask("bob", "/orders").StatusCode)
	require.Equal(t, http.StatusBadRequest, ask("", "/orders").StatusCode, "would share a key with all that have no name")
	require.Equal(t, tokens+1, s.requests)
	blocked := ask("mallory", "/orders")
	require.Equal(t, http.StatusTooManyRequests, blocked.StatusCode)
	require.Empty(t, blocked.Header.Values("Retry-After"))
	require.Equal(t, http.StatusOK, ask("alice", "/health").StatusCode, "a path without a limit")
	return admitted, refused
}

// handled sends requests to a handler.
func handled(h http.Handler) func(*http.Request) *http.Response {
	return func(r *http.Request) *http.Response {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
}

// shows checks that an answer has the headers of httplimit.
func shows(t *testing.T, answer *http.Response, remaining string) {
	t.Helper()
	require.Equal(t, strconv.Itoa(tokens), answer.Header.Get("X-RateLimit-Limit"))
	require.Equal(t, remaining, answer.Header.Get("X-RateLimit-Remaining"))
}

func TestNetHTTP(t *testing.T) {
	limit, s := limitOf(t), &seen{}
	orders := http.Handler(s)
	health := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

	mux := http.NewServeMux()
	mux.Handle("/orders", limit(orders))
	mux.Handle("/health", health) // without a limit

	admitted, refused := drive(t, s, handled(mux))
	shows(t, admitted, "0")
	shows(t, refused, "0")
}

func TestChi(t *testing.T) {
	limit, s := limitOf(t), &seen{}
	orders := s.ServeHTTP

	r := chi.NewRouter()
	r.Group(func(r chi.Router) {
		r.Use(limit)
		r.Post("/orders", orders)
	})

	r.Post("/health", func(http.ResponseWriter, *http.Request) {})
	admitted, refused := drive(t, s, handled(r))
	shows(t, admitted, "0")
	shows(t, refused, "0")
}

func TestEcho(t *testing.T) {
	limit, s := limitOf(t), &seen{}
	orders := echo.WrapHandler(s)

	e := echo.New()
	limited := e.Group("", echo.WrapMiddleware(limit))
	limited.POST("/orders", orders)

	e.POST("/health", func(c echo.Context) error { return c.NoContent(http.StatusOK) })
	admitted, refused := drive(t, s, handled(e))
	shows(t, admitted, "0")
	shows(t, refused, "0")
}

// retryAfter says when to come back. A blocked user may not.
func retryAfter(h interface{ Set(k, v string) }, r reservoir.Result) {
	if r.RetryAfter > 0 {
		seconds := math.Ceil(r.RetryAfter.Seconds())
		h.Set("Retry-After", strconv.Itoa(int(seconds)))
	}
}

func ginLimit(limiter *reservoir.Limiter) gin.HandlerFunc {
	return func(c *gin.Context) {
		user := c.GetString("user")
		if user == "" {
			c.AbortWithStatus(http.StatusBadRequest)
			return
		}
		r, err := limiter.Allow(c.Request.Context(), "user:"+user)
		switch {
		case err != nil: // no decision, in an outage for example
			c.AbortWithStatus(http.StatusServiceUnavailable)
		case !r.Allowed:
			retryAfter(c.Writer.Header(), r)
			c.AbortWithStatus(http.StatusTooManyRequests)
		}
	}
}

func TestGin(t *testing.T) {
	gin.SetMode(gin.TestMode)
	limiter, s := limiterOf(t), &seen{}
	orders := gin.WrapH(s)
	login := func(c *gin.Context) { c.Set("user", c.GetHeader("X-User")) }

	router := gin.New()
	limited := router.Group("/", login, ginLimit(limiter))
	limited.POST("/orders", orders)

	router.POST("/health", func(c *gin.Context) { c.Status(http.StatusOK) })
	drive(t, s, handled(router))
}

func fiberLimit(limiter *reservoir.Limiter) fiber.Handler {
	return func(c fiber.Ctx) error {
		user := c.Get("X-User")
		if user == "" {
			return fiber.ErrBadRequest
		}
		r, err := limiter.Allow(c.Context(), "user:"+user)
		if err != nil { // no decision, in an outage for example
			return fiber.ErrServiceUnavailable
		}
		if !r.Allowed {
			retryAfter(c, r)
			return fiber.ErrTooManyRequests
		}
		return c.Next()
	}
}

func fibered(t *testing.T, app *fiber.App) func(*http.Request) *http.Response {
	return func(r *http.Request) *http.Response {
		answer, err := app.Test(r)
		require.NoError(t, err)
		return answer
	}
}

func TestFiber(t *testing.T) {
	limiter, s := limiterOf(t), &seen{}
	orders := adaptor.HTTPHandler(s)

	app := fiber.New()
	app.Post("/orders", fiberLimit(limiter), orders)

	app.Post("/health", func(c fiber.Ctx) error { return c.SendStatus(http.StatusOK) })
	drive(t, s, fibered(t, app))
}

// Behind Fiber's adaptor the middleware decides before the handler runs, and never learns
// the handler's status: what WithRefund should give back stays charged.
func TestFiberAdaptor(t *testing.T) {
	limit, s := limitOf(t), &seen{}
	status := http.StatusOK
	orders := func(c fiber.Ctx) error { s.requests++; return c.SendStatus(status) }

	app := fiber.New()
	app.Use("/orders", adaptor.HTTPMiddleware(limit))

	app.Post("/orders", orders)
	app.Post("/health", func(c fiber.Ctx) error { return c.SendStatus(http.StatusOK) })
	send := fibered(t, app)
	admitted, refused := drive(t, s, send)
	shows(t, admitted, "0")
	shows(t, refused, "0")

	status = http.StatusNotModified // is free behind net/http
	for _, remaining := range []string{"1", "0"} {
		r := httptest.NewRequest(http.MethodPost, "/orders", nil)
		r.Header.Set("X-User", "carol")
		answer := send(r)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusNotModified, answer.StatusCode)
		shows(t, answer, remaining)
	}
}

var (
	errNoUser = errors.New("no user")
	errLater  = errors.New("try again")
	errLimit  = errors.New("over the limit")
)

func connectLimit(
	limiter *reservoir.Limiter,
) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(
			ctx context.Context, req connect.AnyRequest,
		) (connect.AnyResponse, error) {
			user := req.Header().Get("X-User")
			if user == "" {
				return nil, connect.NewError(
					connect.CodeInvalidArgument, errNoUser)
			}
			r, err := limiter.Allow(ctx, "user:"+user)
			if err != nil { // no decision, in an outage for example
				return nil, connect.NewError(connect.CodeUnavailable, errLater)
			}
			if !r.Allowed {
				err := connect.NewError(connect.CodeResourceExhausted, errLimit)
				retryAfter(err.Meta(), r)
				return nil, err
			}
			return next(ctx, req)
		}
	}
}

func TestConnect(t *testing.T) {
	limiter, s := limiterOf(t), &seen{}
	place := func(context.Context, *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
		s.requests++
		return connect.NewResponse(&emptypb.Empty{}), nil
	}
	limit := connect.WithInterceptors(connectLimit(limiter))
	mux := http.NewServeMux()
	mux.Handle("/orders", connect.NewUnaryHandler("/orders", place, limit))
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	drive(t, s, handled(mux))
}
