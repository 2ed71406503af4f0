package bench

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-reservoir/reservoir/lua"
)

// Peers over rueidis, which sends what is asked for at the same time in shared
// pipelines.
var (
	rueidisBare = kind{name: "bare EVALSHA, rueidis", every: 1, sends: scripts, calls: true, open: openRueidis}

	// rueidisLimiter: see standin.go.
	rueidisLimiter = kind{name: "[rueidislimiter]", every: 1, sends: scripts, calls: true, open: openRueidisLimiter}
)

func openRueidis(r *rig) peer {
	script := rueidis.NewLuaScript(lua.Take)
	tokens, window := strconv.FormatInt(r.limit.Tokens, 10), strconv.FormatInt(r.limit.Window.Milliseconds(), 10)
	args := []string{"1", tokens, window, "0", "0", "0", ""}
	return peer{allow: func(ctx context.Context, key string) (bool, error) {
		tag := "rueidis:{" + key + "}"
		reply, err := script.Exec(ctx, r.rueidis, []string{tag, tag + ":exp"}, args).AsIntSlice()
		return err == nil && reply[0] == takeAllowed, err
	}}
}

// openRueidisLimiter stands in for redis/rueidis/rueidislimiter: a fixed window
// of two keys, the count and its end, which the application's clock sets. One
// script charges first and reports the new count, so that what is refused is
// charged too.
func openRueidisLimiter(r *rig) peer {
	script := rueidis.NewLuaScript(`
local ends = tonumber(redis.call('GET', KEYS[2]))
if not ends or ends < tonumber(ARGV[3]) then
  ends = ARGV[2]
  redis.call('SET', KEYS[1], 0, 'PXAT', ends + 1000)
  redis.call('SET', KEYS[2], ends, 'PXAT', ends + 1000)
end
return { redis.call('INCRBY', KEYS[1], ARGV[1]), tonumber(ends) }`)
	limit, window := r.limit.Tokens, r.limit.Window
	return peer{allow: func(ctx context.Context, key string) (bool, error) {
		now := time.Now()
		name := "rueidislimiter:{" + key + "}"
		reply, err := script.Exec(ctx, r.rueidis, []string{name, name + ":ex"}, []string{
			"1", strconv.FormatInt(now.Add(window).UnixMilli(), 10), strconv.FormatInt(now.UnixMilli(), 10),
		}).AsIntSlice()
		return err == nil && reply[0] <= limit, err
	}}
}
