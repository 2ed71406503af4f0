package redisstore_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestServersThatRefuseScriptsWithoutKeys, as some serverless services do: all of a limiter works,
// because each script names its keys. So does the one with which a process tries whether it hears.
func TestServersThatRefuseScriptsWithoutKeys(t *testing.T) {
	t.Parallel()
	refusing := func(addr string) *redistest.Proxy {
		p := redistest.NewProxy(t, addr)
		p.RefuseKeyless(true)
		return p
	}
	for kind, open := range map[string]func() (redis.UniversalClient, []*redistest.Proxy){
		"server": func() (redis.UniversalClient, []*redistest.Proxy) {
			server := redistest.Start(t)
			p := refusing(server.Addr())
			return server.Client(unhurried, func(o *redis.Options) { o.Addr = p.Addr() }), []*redistest.Proxy{p}
		},
		"cluster": func() (redis.UniversalClient, []*redistest.Proxy) {
			c := redistest.StartCluster(t, 3, 0)
			var all []*redistest.Proxy
			for _, node := range c.Nodes {
				all = append(all, refusing(node.Addr()))
			}
			return c.Client(func(o *redis.ClusterOptions) { o.Dialer = redistest.Dialer(all...) }), all
		},
	} {
		client, proxies := open()
		refused := func() (sum int64) {
			for _, p := range proxies {
				sum += p.Keyless()
			}
			return sum
		}
		require.Error(t, client.Eval(t.Context(), "return 1", nil).Err(), kind)
		require.EqualValues(t, 1, refused(), kind)

		store := redisstore.New(client, redisstore.WithPrefix("rl:"))
		for name, limit := range map[string]reservoir.Limit{"fixed": reservoir.Limit(limit10), "rolling": reservoir.Limit(limit10).Rolling()} {
			for _, opts := range [][]reservoir.Option{nil, {reservoir.WithDirect()}} {
				l, err := reservoir.New(store, limit, append(opts, patient, reservoir.WithName(name))...)
				require.NoError(t, err)
				r, err := l.Allow(t.Context(), "k")
				require.NoError(t, err)
				require.NoError(t, l.Settle(t.Context(), r, 3))
				_, err = l.Check(t.Context(), "k")
				require.NoError(t, err)
				require.NoError(t, l.Reset(t.Context(), "k"))
				require.NoError(t, l.Refresh(t.Context(), "k"))
				assert.NoError(t, l.Close(context.Background()))
			}
		}
		quiet := redisstore.New(client, redisstore.WithPrefix("quiet:")) // where no late message of those Resets comes
		process := hearOf(t, quiet, "a")
		require.NoError(t, process.await(true), kind)
		require.EqualValues(t, 1, recall(t, quiet, "k", "a").Called)
		require.Equal(t, backend.Recall, process.heard().Kind)
		require.NoError(t, store.Verify(t.Context()), kind)
		require.EqualValues(t, 1, refused(), kind)
	}
}
