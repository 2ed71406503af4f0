package docs_test

import (
	"bufio"
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// The code of docs/migrating.md that uses this library. The code that it replaces is in
// test/bench/migrating_test.go.

func fromRedisRate(ctx context.Context, store backend.Store) error {
	limiter, err := reservoir.New(store, reservoir.PerMinute(60)) // once; store is redisstore.New(rdb)
	if err != nil {
		return err
	}
	defer limiter.Close(context.Background()) // ctx may have ended by then

	r, err := limiter.Allow(ctx, "project:123")
	if err != nil {
		return err
	}
	fmt.Println("allowed", r.Allowed, "remaining", r.Remaining)
	return nil
}

func Example_fromRedisRate() {
	check(fromRedisRate(context.Background(), memstore.New()))
	// Output: allowed true remaining 59
}

func Example_fromRedisRateLimits() {
	ctx, store := context.Background(), memstore.New()
	limiter, err := reservoir.New(store, reservoir.PerMinute(60),
		reservoir.WithLimits(func(key string) reservoir.Limit {
			if strings.HasPrefix(key, "paid:") {
				return reservoir.PerMinute(600)
			}
			return reservoir.PerMinute(60)
		}))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(ctx)
	r, err := limiter.Allow(ctx, "paid:123")
	fmt.Println(r.Limit, err)
	// Output: 600 <nil>
}

func Example_openStore() {
	store, err := redisstore.Open("redis://:password@localhost:6379", redisstore.WithPrefix("api:"))
	fmt.Println(store.Close(), err)
	// Output: <nil> <nil>
}

func fromTimeRate(ctx context.Context, store backend.Store) (bool, error) {
	limiter, err := reservoir.New(store, reservoir.Limit{Tokens: 10, Window: 100 * time.Millisecond})
	if err != nil {
		return false, err
	}
	defer limiter.Close(context.Background())
	api := limiter.Key("api") // a rate.Limiter is one limit

	if _, err := api.Wait(ctx); err != nil {
		return false, err
	}
	r, err := api.Allow(ctx)
	return r.Allowed, err
}

func Example_fromTimeRate() {
	fmt.Println(fromTimeRate(context.Background(), memstore.New()))
	// Output: true <nil>
}

func of(percent uint32, key string, before, after *reservoir.Limiter) *reservoir.Limiter {
	if crc32.ChecksumIEEE([]byte(key))%100 < percent { // in all processes the same
		return after
	}
	return before
}

// A key that moves begins a fresh window there, and finds the old one if it goes back.
func Example_keyByKey() {
	ctx := context.Background()
	before, err := reservoir.New(memstore.New(), reservoir.PerHour(5))
	check(err)
	defer before.Close(ctx)
	after, err := reservoir.New(memstore.New(), reservoir.PerHour(5))
	check(err)
	defer after.Close(ctx)

	for _, percent := range []uint32{0, 0, 10, 100, 0} {
		r, err := of(percent, "user:42", before, after).Allow(ctx, "user:42")
		fmt.Println(percent, r.Allowed, r.Remaining, err)
	}
	// Output:
	// 0 true 4 <nil>
	// 0 true 3 <nil>
	// 10 true 2 <nil>
	// 100 true 4 <nil>
	// 0 true 1 <nil>
}

// A percentage moves that part of the keys, and a higher one moves none of them back.
func TestKeyByKey(t *testing.T) {
	before, after := new(reservoir.Limiter), new(reservoir.Limiter)
	const keys = 10_000
	moved := map[string]bool{}
	for _, percent := range []uint32{0, 1, 10, 50, 100} {
		at := 0
		for i := range keys {
			key := fmt.Sprintf("user:%d", i)
			if of(percent, key, before, after) == after {
				at, moved[key] = at+1, true
			}
		}
		require.Len(t, moved, at, "keys moved back")
		require.InDelta(t, percent, float64(at)*100/keys, 1)
	}
}

// The page is right about requests that can never be admitted.
func TestNeverToBeAdmitted(t *testing.T) {
	l, err := reservoir.New(memstore.New(), reservoir.PerMinute(60))
	require.NoError(t, err)
	defer l.Close(context.Background())
	_, err = l.AllowN(context.Background(), "k", 61)
	require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
	_, err = l.WaitN(context.Background(), "k", 61)
	require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
}

// script is a Redis client in another language, which uses EVAL and not this library.
type script struct {
	conn net.Conn
	in   *bufio.Reader
	text string
}

func newScript(t *testing.T, addr string) *script {
	text, err := os.ReadFile("backend/redisstore/testdata/rate.lua")
	require.NoError(t, err)
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &script{conn, bufio.NewReader(conn), string(text)}
}

// allow charges one token as GitHub's RATE does, and compares the count with the limit
// afterwards.
func (s *script) allow(key string, limit int64, window time.Duration) (bool, error) {
	now := time.Now()
	args := []string{"EVAL", s.text, "1", key, "1", fmt.Sprint(now.Add(window).Unix()), fmt.Sprintf("%.6f", float64(now.UnixMicro())/1e6)}
	fmt.Fprintf(s.conn, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(s.conn, "$%d\r\n%s\r\n", len(a), a)
	}
	var count int64
	for _, prefix := range []string{"*", ":", ":"} {
		line, err := s.in.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, prefix) {
			return false, fmt.Errorf("%q: %w", line, err)
		}
		if count == 0 && prefix == ":" {
			if count, err = strconv.ParseInt(strings.TrimSpace(line[1:]), 10, 64); err != nil {
				return false, err
			}
		}
	}
	return count <= limit, nil
}

// TestMixedFleet lets two processes of ours and three clients of GitHub's script share
// the limit of a key exactly, with a request of ours for each of theirs.
func TestMixedFleet(t *testing.T) {
	const limit = 5_000
	server := redistest.Start(t)
	var ours, theirs atomic.Int64
	turns := make(chan struct{}, limit) // a request of ours for each of theirs
	var scripts, limiters sync.WaitGroup
	for range 3 {
		s := newScript(t, server.Addr())
		scripts.Go(func() {
			for {
				allowed, err := s.allow("{user:42}", limit, time.Hour)
				if !assert.NoError(t, err) || !allowed {
					return
				}
				theirs.Add(1)
				turns <- struct{}{}
			}
		})
	}
	for range 2 {
		l, err := reservoir.New(redisstore.New(server.Client()), reservoir.PerHour(limit), reservoir.WithFetchTimeout(10*time.Second))
		require.NoError(t, err)
		limiters.Go(func() {
			allow := func() bool {
				r, err := l.Allow(context.Background(), "user:42")
				if assert.NoError(t, err) && r.Allowed {
					ours.Add(1)
				}
				return r.Allowed
			}
			for range turns {
				allow()
			}
			for allow() { // after their first refusal we may still spend what we were charged
			}
			assert.NoError(t, l.Close(context.Background()))
		})
	}
	scripts.Wait()
	close(turns)
	limiters.Wait()
	t.Logf("ours %d, theirs %d", ours.Load(), theirs.Load())
	require.Greater(t, theirs.Load(), int64(limit/50))
	require.Greater(t, ours.Load(), int64(limit/50))
	require.LessOrEqual(t, ours.Load()+theirs.Load(), int64(limit))
	require.Greater(t, ours.Load()+theirs.Load(), int64(limit*98/100))
}
