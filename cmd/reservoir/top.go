package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// Bounds of -top. Each SCAN is followed by a pause that is longer than the SCAN, to spare
// the server.
const (
	mostNames = 100_000 // that are read from a server, of limits and others
	someNames = 500     // in one SCAN
	scanPause = 5 * time.Millisecond
)

// candidates holds the keys found on all servers.
type candidates struct {
	mu          sync.Mutex // because the servers of a cluster are read concurrently
	charged     map[string]int64
	seen, there int64 // names read, about, and keys on the servers
	partial     bool  // not all names of a server were read
}

func (l *look) fullest(ctx context.Context, top int, stdout io.Writer) error {
	c := &candidates{charged: make(map[string]int64)}
	err := l.store.eachServer(ctx, func(ctx context.Context, server *redis.Client) error {
		return c.scan(ctx, server, l.prefix)
	})
	if err != nil && ctx.Err() == nil {
		return err
	}
	note := ""
	if c.partial || ctx.Err() != nil {
		note = fmt.Sprintf("\nOnly about %s of %s keys were read.\n", table.Commas(min(c.seen, c.there)), table.Commas(c.there))
	}
	keys := slices.SortedFunc(maps.Keys(c.charged), func(a, b string) int { return cmp.Compare(c.charged[b], c.charged[a]) })
	list := []*inspection{}
	for _, key := range keys[:min(len(keys), 2*top)] { // because some are skipped
		i, err := l.at(context.WithoutCancel(ctx), key)
		if failed, ok := errors.AsType[*backend.Error](err); err != nil && !(ok && failed.KeyOnly) {
			return err
		}
		if err == nil && i.Open { // it may have ended
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(a, b *inspection) int { return cmp.Compare(b.Charged, a.Charged) })
	list = list[:min(len(list), top)]
	return emit(stdout, l.json, list, topTable(list)+note)
}

// scan reads a server's keys. A limit has three keys, and the pattern matches only its
// count.
func (c *candidates) scan(ctx context.Context, server *redis.Client, prefix string) error {
	there, err := server.DBSize(ctx).Result()
	if err != nil {
		return err
	}
	pattern := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(prefix) + "{*}"
	var keys []string
	cursor, seen := uint64(0), int64(0)
	for err == nil && seen < mostNames && (cursor != 0 || seen == 0) {
		if keys, cursor, err = server.Scan(ctx, cursor, pattern, someNames).Result(); err == nil {
			err = c.read(ctx, server, keys, prefix)
		}
		seen += someNames
		sim.Wait(ctx, time.Now().Add(scanPause))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.there, c.seen, c.partial = c.there+there, c.seen+seen, c.partial || cursor != 0
	return err
}

// read reads the counts. A key is not a limit's if its value is no number or it has no
// end beside it.
func (c *candidates) read(ctx context.Context, server *redis.Client, keys []string, prefix string) error {
	counts, ends := make([]*redis.StringCmd, len(keys)), make([]*redis.IntCmd, len(keys))
	_, err := server.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, k := range keys {
			counts[i], ends[i] = p.Get(ctx, k), p.Exists(ctx, k+":exp")
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, k := range keys {
		n, bad := counts[i].Int64()
		name, foreign := url.PathUnescape(strings.TrimSuffix(strings.TrimPrefix(k, prefix+"{"), "}"))
		if bad == nil && foreign == nil && backend.ValidateKey(name) == nil && ends[i].Val() == 1 {
			c.charged[name] = n
		}
		if _, answered := counts[i].Err().(redis.Error); answered {
			err = nil // of one key only, such as a wrong type
		}
	}
	return err
}

func topTable(list []*inspection) string {
	if len(list) == 0 {
		return "No key has an open window.\n"
	}
	rows := [][]string{{"key", "charged", "clients", "reset"}}
	for _, i := range list {
		name := quoted(i.Key)
		if i.Name != "" {
			name = quoted(i.Name) + " " + name
		}
		rows = append(rows, []string{name, table.Commas(i.Charged), fmt.Sprint(len(i.Clients)), i.end()})
	}
	return table.Text(rows, false)
}
