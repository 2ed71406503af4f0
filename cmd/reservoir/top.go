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

// ranking is the result of -top, and the keys found so far on all servers.
type ranking struct {
	Keys    []*inspection `json:"keys"`
	NotRead string        `json:"not_read,omitempty"` // what a bound or an interruption left out

	mu          sync.Mutex // because the servers of a cluster are read concurrently
	charged     map[string]int64
	seen, there int64 // names read, about, and keys on the servers
	partial     bool  // not all names of a server were read
}

func (l *look) fullest(ctx context.Context, top int, stdout io.Writer) error {
	r := &ranking{Keys: []*inspection{}, charged: make(map[string]int64)}
	err := l.store.eachServer(ctx, func(ctx context.Context, server *redis.Client) error {
		return r.scan(ctx, server, l.prefix)
	})
	switch {
	case err != nil && ctx.Err() == nil:
		return err
	case err != nil && r.seen == 0:
		return errors.New("stopped before any key was read")
	}
	if r.partial || ctx.Err() != nil {
		r.NotRead = fmt.Sprintf("Only about %s of %s keys were read.", table.Commas(min(r.seen, r.there)), table.Commas(r.there))
	}
	if ctx.Err() != nil { // what was found before the interruption is shown, but soon
		var cancel func()
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
		defer cancel()
	}
	for _, key := range slices.SortedFunc(maps.Keys(r.charged), func(a, b string) int { return cmp.Compare(r.charged[b], r.charged[a]) }) {
		i, err := l.at(ctx, key)
		if ctx.Err() != nil {
			r.NotRead = cmp.Or(r.NotRead, "Stopped early: further keys were not shown.")
			break
		}
		if failed, ok := errors.AsType[*backend.Error](err); err != nil && !(ok && failed.KeyOnly) {
			return err
		}
		if err == nil && i.Open { // it may have ended
			if r.Keys = append(r.Keys, i); len(r.Keys) == top {
				break
			}
		}
	}
	slices.SortStableFunc(r.Keys, func(a, b *inspection) int { return cmp.Compare(b.Charged, a.Charged) })
	return emit(stdout, l.json, r, r.text())
}

// scan reads the names of a server's limits. A limit has three keys, and the pattern
// matches only the one with its end.
func (r *ranking) scan(ctx context.Context, server *redis.Client, prefix string) error {
	there, err := server.DBSize(ctx).Result()
	if err != nil {
		return err
	}
	pattern := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(prefix) + "{*}:exp"
	var ends []string
	cursor, seen := uint64(0), int64(0)
	for err == nil && seen < mostNames && (cursor != 0 || seen == 0) {
		if ends, cursor, err = server.Scan(ctx, cursor, pattern, someNames).Result(); err == nil {
			err = r.read(ctx, server, ends, prefix)
			seen += someNames
			sim.Wait(ctx, time.Now().Add(scanPause))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.there, r.seen, r.partial = r.there+there, r.seen+seen, r.partial || cursor != 0
	return err
}

// read reads the counts that belong to the ends. One whose value is no number is not a
// limit's.
func (r *ranking) read(ctx context.Context, server *redis.Client, ends []string, prefix string) error {
	cmds, err := server.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, end := range ends {
			p.Get(ctx, strings.TrimSuffix(end, ":exp"))
		}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, cmd := range cmds {
		n, bad := cmd.(*redis.StringCmd).Int64()
		name, foreign := url.PathUnescape(strings.TrimSuffix(strings.TrimPrefix(ends[i], prefix+"{"), "}:exp"))
		if bad == nil && foreign == nil && backend.ValidateKey(name) == nil {
			r.charged[name] = n
		}
		if _, answered := cmd.Err().(redis.Error); answered {
			err = nil // of one key only, such as a wrong type
		}
	}
	return err
}

func (r *ranking) text() string {
	note := ""
	if r.NotRead != "" {
		note = "\n" + r.NotRead + "\n"
	}
	if len(r.Keys) == 0 {
		return "No open window was found.\n" + note
	}
	rows := [][]string{{"key", "charged", "clients", "reset"}}
	for _, i := range r.Keys {
		name := quoted(i.Key)
		if i.Name != "" {
			name = quoted(i.Name) + " " + name
		}
		rows = append(rows, []string{name, i.charged(), fmt.Sprint(len(i.Clients)), i.end()})
	}
	return table.Text(rows, false) + note
}
