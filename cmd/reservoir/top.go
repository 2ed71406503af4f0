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
	mu          sync.Mutex
	charged     map[string]int64
	seen, there int64 // names read, about, and keys on the servers
	cut         bool  // a server has more than mostNames
}

// best inspects the fullest keys and returns them in descending order. It tries twice as
// many as are wanted, because it skips keys of other programs.
func (c *candidates) best(ctx context.Context, l *look) ([]*inspection, error) {
	keys := slices.SortedFunc(maps.Keys(c.charged), func(a, b string) int { return cmp.Compare(c.charged[b], c.charged[a]) })
	list := []*inspection{}
	for _, key := range keys[:min(len(keys), 2*l.top)] {
		i, err := l.inspect(ctx, key)
		var failed *backend.Error
		switch {
		case err == nil && i.Open && len(list) < l.top: // it may have ended
			list = append(list, i)
		case err == nil, errors.Is(err, backend.ErrKey), errors.As(err, &failed) && failed.KeyOnly:
		default:
			return nil, l.store.explained(err)
		}
	}
	slices.SortStableFunc(list, func(a, b *inspection) int { return cmp.Compare(b.Charged, a.Charged) })
	return list, nil
}

// fullest finds the keys with the most charged and shows them.
func (l *look) fullest(ctx context.Context, stdout io.Writer) error {
	c := &candidates{charged: make(map[string]int64)}
	err := l.store.eachServer(ctx, func(ctx context.Context, server *redis.Client) error {
		return c.scan(ctx, server, l.store.prefix)
	})
	stopped := ctx.Err() != nil
	if err != nil && !stopped {
		return err
	}
	list, err := c.best(context.WithoutCancel(ctx), l)
	if err != nil {
		return err
	}
	note := ""
	switch {
	case stopped:
		note = "Stopped early"
	case c.cut:
		note = "Too many keys"
	}
	if note != "" {
		note = fmt.Sprintf("\n%s: only about %s of %s keys were read.\n", note, table.Commas(min(c.seen, c.there)), table.Commas(c.there))
	}
	return emit(stdout, l.json, list, func(width int) string { return topTable(width, list) + note })
}

// scan reads a server's keys. A limit has three keys, and the pattern matches only its
// count.
func (c *candidates) scan(ctx context.Context, server *redis.Client, prefix string) error {
	there, err := server.DBSize(ctx).Result()
	if err != nil {
		return err
	}
	c.count(func() { c.there += there })
	literal := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)
	var cursor uint64
	for names := 0; names < mostNames; names += someNames {
		var keys []string
		if keys, cursor, err = server.Scan(ctx, cursor, literal.Replace(prefix)+"{*}", someNames).Result(); err != nil {
			return err
		}
		c.count(func() { c.seen += someNames })
		if err := c.read(ctx, server, keys, prefix); err != nil || cursor == 0 {
			return err
		}
		select {
		case <-time.After(scanPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.count(func() { c.cut = true })
	return nil
}

// count runs change under the lock, because the servers of a cluster are read
// concurrently.
func (c *candidates) count(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// read reads the counts. A key is not a limit's if its value is no number or it has no
// end beside it.
func (c *candidates) read(ctx context.Context, server *redis.Client, keys []string, prefix string) error {
	if len(keys) == 0 {
		return nil
	}
	counts, ends := make([]*redis.StringCmd, len(keys)), make([]*redis.IntCmd, len(keys))
	_, err := server.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, k := range keys {
			counts[i], ends[i] = p.Get(ctx, k), p.Exists(ctx, k+":exp")
		}
		return nil
	})
	for i, k := range keys {
		n, bad := counts[i].Int64()
		name, foreign := url.PathUnescape(strings.TrimSuffix(strings.TrimPrefix(k, prefix+"{"), "}"))
		if bad == nil && foreign == nil && ends[i].Val() == 1 {
			c.count(func() { c.charged[name] = n })
		}
		if _, answered := counts[i].Err().(redis.Error); answered {
			err = nil // of one key only, such as a wrong type
		}
	}
	return err
}

// topTable returns a table with a row for each key. The store does not record limits.
func topTable(width int, list []*inspection) string {
	if len(list) == 0 {
		return "No key has an open window.\n"
	}
	rows := [][]string{{"key", "charged", "limit", "clients", "reset"}}
	for _, i := range list {
		name, limit := quoted(i.Key), "unknown"
		if i.Name != "" {
			name = quoted(i.Name) + " " + name
		}
		if i.Limit != nil {
			limit = table.Commas(*i.Limit)
		}
		rows = append(rows, []string{name, table.Commas(i.Charged), limit, fmt.Sprint(len(i.Clients)), fmt.Sprintf("%s, in %v", i.Reset, i.left())})
	}
	return table.Within(width, rows, false)
}
