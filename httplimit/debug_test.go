package httplimit_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/httplimit"
)

type debugged []struct {
	Name  string
	Stats map[string]int64
	Keys  []struct {
		Key                        string
		Denied, Spent, Held, Limit int64
		WindowSeconds              float64 `json:"window_seconds"`
		Exhausted                  bool
		Reset                      time.Time
	}
}

func inspect(t *testing.T, h http.Handler) (all debugged) {
	t.Helper()
	resp := get(h, "Accept", "application/json")
	require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&all))
	return all
}

// The page has each limiter's figures, and of its keys the hundred that are denied most,
// then those that spent most, in order.
func TestDebug(t *testing.T) {
	for mode, opts := range modes {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				users, empty := open(t, reservoir.PerHour(5), opts...), open(t, reservoir.PerMinute(1))
				all := map[string]*reservoir.Limiter{"users": users, "empty": empty}
				h := httplimit.Debug(all)
				delete(all, "users") // the map is the caller's
				for i := range 130 {
					requests := 1 + (i*7)%3
					if i%2 == 0 {
						requests = 5 + i
					}
					for range requests {
						_, err := users.Allow(t.Context(), fmt.Sprint("user:", i))
						require.NoError(t, err)
					}
				}
				synctest.Wait()
				page := inspect(t, h)
				require.Len(t, page, 2)
				assert.Equal(t, []string{"empty", "users"}, []string{page[0].Name, page[1].Name})
				assert.Empty(t, page[0].Keys)
				s := users.Stats()
				for _, f := range reservoir.Figures() {
					got, ok := page[1].Stats[f.Name]
					assert.True(t, ok && got == f.Value(&s), f.Name)
				}
				keys := page[1].Keys
				require.Len(t, keys, 100)
				for i := range 64 {
					k, user := keys[i], 128-2*i // 0 has not been refused
					require.Equal(t, fmt.Sprint("user:", user), k.Key)
					require.Equal(t, []int64{int64(user), 5, 5}, []int64{k.Denied, k.Spent, k.Limit})
					require.EqualValues(t, 3600, k.WindowSeconds)
					require.True(t, k.Exhausted)
					require.Equal(t, "2000-01-01T01:00:00Z", k.Reset.UTC().Format(time.RFC3339))
				}
				require.Equal(t, "user:0", keys[64].Key, "who has spent most")
				for i := 65; i < 100; i++ {
					require.Zero(t, keys[i].Denied)
					require.LessOrEqual(t, keys[i].Spent, keys[i-1].Spent)
				}
				time.Sleep(time.Hour + time.Minute)
				for _, k := range inspect(t, h)[1].Keys {
					require.True(t, k.Reset.IsZero(), "no window is open")
				}
			})
		})
	}
}

// Text is for people, and what clients call themselves cannot forge a line of it.
func TestDebugText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, reservoir.Limit{Tokens: 3, Window: 1500 * time.Millisecond})
		for range 7 {
			_, err := l.Allow(t.Context(), "a\nb\t<script>")
			require.NoError(t, err)
		}
		h := httplimit.Debug(map[string]*reservoir.Limiter{"per second": l})
		for _, accept := range []string{"", "*/*", "text/html,*/*;q=0.8", "text/plain, application/json;q=0.5"} {
			resp := get(h, "Accept", accept)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, "text/plain; charset=utf-8", resp.Header.Get("Content-Type"), accept)
			assert.Equal(t, "nosniff", resp.Header.Get("X-Content-Type-Options"))
			assert.Regexp(t, `(?m)^"per second"\n\nkeys +1\n`, string(body))
			assert.Regexp(t, `(?m)^requests.denied +4$`, string(body))
			assert.Regexp(t, `(?m)^4 +3 +0 +3 +1.5s +2000-01-01T00:00:01Z +"a\\nb\\t<script>"$`, string(body))
		}
		time.Sleep(2 * time.Second)
		body, err := io.ReadAll(get(h).Body)
		require.NoError(t, err)
		assert.Regexp(t, `(?m)^4 +3 +0 +3 +1.5s +- +"a`, string(body))
	})
}

// Keys are apart in JSON too, where bytes that are not UTF-8 have no form.
func TestDebugOfBytes(t *testing.T) {
	l := open(t, reservoir.PerHour(5))
	want := map[string]string{
		"a\xff": `"a\xff"`, "a\xfe": `"a\xfe"`, "a\ufffd": "a\ufffd", `"a\xff"`: `"\"a\\xff\""`, `a"<é`: `a"<é`,
	}
	for key := range want {
		_, err := l.Allow(t.Context(), key)
		require.NoError(t, err)
	}
	var got []string
	for _, k := range inspect(t, httplimit.Debug(map[string]*reservoir.Limiter{"": l}))[0].Keys {
		got = append(got, k.Key)
	}
	assert.ElementsMatch(t, slices.Collect(maps.Values(want)), got)
}

func TestDebugIsOnlyRead(t *testing.T) {
	h := httplimit.Debug(nil)
	for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "DELETE": 405, "OPTIONS": 405} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
		assert.Equal(t, want, w.Code, method)
		assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		assert.Equal(t, want == 405, w.Header().Get("Allow") == "GET, HEAD")
	}
	assert.Equal(t, "[]\n", func() string {
		body, _ := io.ReadAll(get(h, "Accept", "application/json").Body)
		return string(body)
	}(), "not null")
	assert.Panics(t, func() { httplimit.Debug(map[string]*reservoir.Limiter{"x": nil}) })
}

// Many keys cost time, not memory.
func TestDebugOfManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := func(keys int) uint64 {
			l := open(t, reservoir.PerHour(5))
			for i := range keys {
				_, err := l.Allow(t.Context(), strings.Repeat("x", i%50)+fmt.Sprint(i))
				require.NoError(t, err)
			}
			synctest.Wait() // nothing else is to use memory
			h, r := httplimit.Debug(map[string]*reservoir.Limiter{"": l}), request("")
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			h.ServeHTTP(&discard{http.Header{}}, r)
			runtime.ReadMemStats(&after)
			return after.TotalAlloc - before.TotalAlloc
		}
		few := memory(200)
		assert.Less(t, memory(20_000), 2*few)
	})
}
